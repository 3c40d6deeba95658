//! Later.
pub(crate) const MARK: &str = "--as-ordinary-user";
pub(crate) const CASES: &[crate::Case] = &[];
pub(crate) fn inner(_: &[String]) -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
