//! The bytes of modules and scripts, for whoever starts a run of one: from the tool's archive, from what was
//! uploaded, or from a template of this host.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use leasehold_backend::seam;
use leasehold_backend::wasm::{Module, ModuleSource};
use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::spec::{SCRIPT_BYTES_MAX, Script};
use rustix::fs::{MemfdFlags, memfd_create};

use super::parts::{Doing, Objects, Parts};
use crate::archive::{self, ARCHIVE_MAX, Entry, TOOL_DIR};
use crate::module::{ModulePlace, ModuleStart, ScriptPlace, ToolFile};
use crate::plan::Plan;

/// Bytes of an object that are read at once.
const PIECE: usize = 4 << 20;

/// The snapshot templates of this host.
pub trait Templates: Send + Sync + 'static {
    /// Digest of a template's component; `None` where there is no such template.
    ///
    /// # Errors
    /// When it is there and cannot be used.
    fn find(&self, name: String) -> Doing<'_, Option<Digest>>;

    /// Opens its component. Another may have taken its place meanwhile: the digest of what is read says.
    ///
    /// # Errors
    /// When it is not there any more, or cannot be read.
    fn open(&self, name: String) -> Doing<'_, File>;
}

/// There are none.
#[derive(Debug, Clone, Copy)]
pub struct NoTemplates;

impl Templates for NoTemplates {
    fn find(&self, _: String) -> Doing<'_, Option<Digest>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn open(&self, name: String) -> Doing<'_, File> {
        Box::pin(std::future::ready(Err(no_template(&name))))
    }
}

/// The refusal of a template that is not there.
pub(crate) fn no_template(name: &str) -> PublicError {
    PublicError::new(
        ErrorKind::Unsupported,
        format!("there is no template `{name}` on this host"),
    )
    .hint(format!(
        "build it there: leasehold template build --wasm {name}"
    ))
}

/// Bytes that are at hand, as a file.
pub(crate) fn in_memory(bytes: &[u8]) -> io::Result<File> {
    let memory: OwnedFd = memfd_create("leasehold-bytes", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(memory);
    file.write_all(bytes)?;
    Ok(file)
}

fn lacking(error: &io::Error) -> PublicError {
    PublicError::new(
        ErrorKind::Unavailable,
        format!("no memory for a module: {error}"),
    )
}

/// All of an object that has at most so many bytes.
async fn whole(objects: &dyn Objects, digest: Digest, most: usize) -> Result<Vec<u8>, PublicError> {
    let gone = || {
        PublicError::new(
            ErrorKind::NotFound,
            format!("{digest} is not kept any more"),
        )
    };
    let size = objects.size(digest).await?.ok_or_else(gone)?;
    if size > most as u64 {
        let message = format!("{digest} has {size} bytes: most is {most}");
        return Err(PublicError::new(ErrorKind::Invalid, message));
    }
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < size {
        let piece = objects.read(digest, bytes.len() as u64, PIECE).await?;
        if piece.is_empty() {
            return Err(gone());
        }
        bytes.extend(piece);
    }
    Ok(bytes)
}

/// One file of a tool.
async fn of_tool(objects: &dyn Objects, of: &ToolFile) -> Result<Vec<u8>, PublicError> {
    let archive = whole(objects, of.package, ARCHIVE_MAX).await?;
    let broken = |why: String| {
        let message = format!("the files of the tool cannot be believed: {why}");
        PublicError::new(ErrorKind::Internal, message)
    };
    let name = format!("{TOOL_DIR}/{}", of.file);
    // Where it does not hold up others: it may be long.
    let unpacking = tokio::task::spawn_blocking(move || {
        let mut tree = archive::unpack(&archive).map_err(|error| error.to_string())?;
        match tree.remove(&name) {
            Some(Entry::File { content, .. }) => Ok(content),
            _ => Err(format!("{name:?} is not among them")),
        }
    });
    let unpacked = unpacking.await.map_err(|error| broken(error.to_string()))?;
    unpacked.map_err(broken)
}

/// A module that is read when it must be compiled.
struct Source {
    objects: Arc<dyn Objects>,
    templates: Arc<dyn Templates>,
    digest: Digest,
    place: ModulePlace,
}

impl ModuleSource for Source {
    fn open(&self) -> seam::Doing<'_, Result<File, PublicError>> {
        Box::pin(async move {
            let bytes = match &self.place {
                ModulePlace::Template(name) => return self.templates.open(name.clone()).await,
                ModulePlace::Tool(of) => of_tool(self.objects.as_ref(), of).await?,
                ModulePlace::Object => {
                    whole(self.objects.as_ref(), self.digest, ARCHIVE_MAX).await?
                }
            };
            in_memory(&bytes).map_err(|error| lacking(&error))
        })
    }
}

impl Parts {
    /// Whether a run waits for no code: it has no module, or its module's code is there.
    pub(super) fn code_at_hand(&self, plan: &Plan) -> bool {
        let backend = self.backends.named(&plan.contract.selected.backend);
        match (plan.module(), backend) {
            (Some((spec, _)), Ok(backend)) => backend.at_hand(spec),
            (None, _) | (_, Err(_)) => true,
        }
    }

    /// The module of a run, its bytes not read yet.
    pub(super) fn module(&self, plan: &Plan) -> Option<Module> {
        let (spec, start) = plan.module()?;
        Some(self.module_at(spec.digest, start.place.clone()))
    }

    /// A module whose bytes are read where they are kept, once they are needed.
    pub(crate) fn module_at(&self, digest: Digest, place: ModulePlace) -> Module {
        let source = Source {
            objects: Arc::clone(&self.objects),
            templates: Arc::clone(&self.templates),
            digest,
            place,
        };
        Module::asked(digest, Arc::new(source))
    }

    /// The script of its module, where it gets one as text.
    ///
    /// # Errors
    /// When it cannot be read, or is not the one that was admitted.
    pub(super) async fn script(&self, plan: &Plan) -> Result<Option<Script>, PublicError> {
        let Some((spec, start)) = plan.module() else {
            return Ok(None);
        };
        let ModuleStart {
            script: Some(place),
            ..
        } = start
        else {
            return Ok(None);
        };
        let of = match place {
            ScriptPlace::Given(script) => return Ok(Some(script.clone())),
            ScriptPlace::Tool(of) => of,
        };
        let known = spec.script.and_then(|digest| self.scripts.get(&digest));
        let text = match known {
            Some(text) => text,
            None => {
                let bytes = of_tool(self.objects.as_ref(), of).await?;
                let text: Arc<str> = script_text(bytes)
                    .map_err(|why| PublicError::new(ErrorKind::Internal, why))?
                    .into();
                self.scripts.keep(Digest::of(text.as_bytes()), &text);
                text
            }
        };
        Ok(Some(Script {
            at: 1,
            text: text.as_ref().to_owned(),
        }))
    }
}

/// A file as the text of a script.
///
/// # Errors
/// Why it is none.
pub(crate) fn script_text(bytes: Vec<u8>) -> Result<String, String> {
    if bytes.len() > SCRIPT_BYTES_MAX {
        let bytes = bytes.len();
        return Err(format!(
            "the script has {bytes} bytes: most is {SCRIPT_BYTES_MAX}"
        ));
    }
    match String::from_utf8(bytes) {
        Ok(text) if text.contains('\0') => Err("the script has a NUL byte".to_owned()),
        Ok(text) => Ok(text),
        Err(_) => Err("the script is not UTF-8".to_owned()),
    }
}

/// Texts of the scripts that ran last, so that an archive is not read for each run. Cheap to clone; clones share.
#[derive(Debug, Clone, Default)]
pub struct Scripts(Arc<std::sync::Mutex<Vec<Text>>>);

#[derive(Debug)]
struct Text {
    digest: Digest,
    text: Arc<str>,
}

/// Scripts that are kept, of at most [`SCRIPT_BYTES_MAX`] each.
const SCRIPTS_MAX: usize = 32;

impl Scripts {
    fn get(&self, digest: &Digest) -> Option<Arc<str>> {
        let mut kept = super::locked(&self.0);
        let at = kept.iter().position(|known| known.digest == *digest)?;
        // The one that was used last is the last to go.
        let found = kept.remove(at);
        let text = Arc::clone(&found.text);
        kept.push(found);
        Some(text)
    }

    fn keep(&self, digest: Digest, text: &Arc<str>) {
        let mut kept = super::locked(&self.0);
        kept.retain(|known| known.digest != digest);
        if kept.len() == SCRIPTS_MAX {
            kept.remove(0);
        }
        let text = Arc::clone(text);
        kept.push(Text { digest, text });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_scripts_are_kept_and_the_one_used_last_goes_last() {
        let scripts = Scripts::default();
        let digest = |at: usize| Digest::of(&at.to_le_bytes());
        let text: Arc<str> = "print(1)".into();
        for at in 0..SCRIPTS_MAX {
            scripts.keep(digest(at), &text);
        }
        assert!(scripts.get(&digest(0)).is_some());
        scripts.keep(digest(SCRIPTS_MAX), &text);
        assert!(scripts.get(&digest(0)).is_some());
        assert!(scripts.get(&digest(1)).is_none());
    }

    #[test]
    fn a_script_is_text_within_its_bound() {
        assert_eq!(script_text(b"x".to_vec()), Ok("x".to_owned()));
        for bad in [vec![0xff], vec![0], vec![b'x'; SCRIPT_BYTES_MAX + 1]] {
            assert!(script_text(bad).is_err());
        }
    }
}
