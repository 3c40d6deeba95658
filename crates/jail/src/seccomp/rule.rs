//! The words the table is written in: what is done with a system call, and on what argument it hangs.

/// What happens to a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// It reaches the kernel.
    Allow,
    /// It returns this error number at once; 0 pretends success.
    Errno(u16),
    /// The whole process dies by `SIGSYS`.
    Kill,
    /// It hangs on an argument.
    If(&'static Branch),
}

/// One look at one half of one argument.
#[derive(Debug, PartialEq, Eq)]
pub struct Branch {
    /// Which half of which argument.
    pub word: Word,
    /// What is asked of it.
    pub test: Test,
    /// When it holds.
    pub then: Rule,
    /// When it does not.
    pub otherwise: Rule,
}

/// Half of an argument, 0 to 5. A C `int` is only its low half: the kernel ignores the other, and a
/// filter that compared it could be talked past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Bits 0 to 31.
    Low(u8),
    /// Bits 32 to 63.
    High(u8),
}

/// A question to a 32-bit word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    /// It is one of these.
    OneOf(&'static [u32]),
    /// After the mask it is one of these.
    MaskedOneOf(u32, &'static [u32]),
    /// It shares a bit with this.
    AnyBit(u32),
}

impl Rule {
    /// What the rule comes to for these six arguments: never [`Rule::If`]. The compiled program must
    /// agree with it.
    #[must_use]
    pub fn decide(self, args: [u64; 6]) -> Self {
        match self {
            Self::Allow | Self::Errno(_) | Self::Kill => self,
            Self::If(branch) => {
                let word = match branch.word {
                    Word::Low(arg) => args[usize::from(arg)] as u32,
                    Word::High(arg) => (args[usize::from(arg)] >> 32) as u32,
                };
                let holds = match branch.test {
                    Test::OneOf(values) => values.contains(&word),
                    Test::MaskedOneOf(mask, values) => values.contains(&(word & mask)),
                    Test::AnyBit(bits) => word & bits != 0,
                };
                if holds {
                    branch.then.decide(args)
                } else {
                    branch.otherwise.decide(args)
                }
            }
        }
    }
}

/// An instruction set with its own system call numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arch {
    /// 64-bit x86.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
}

impl Arch {
    /// The one this program was compiled for.
    #[cfg(target_arch = "x86_64")]
    pub const NATIVE: Self = Self::X86_64;
    /// The one this program was compiled for.
    #[cfg(target_arch = "aarch64")]
    pub const NATIVE: Self = Self::Aarch64;

    /// Its `AUDIT_ARCH_*` value, which the kernel gives to the filter.
    #[must_use]
    pub const fn audit(self) -> u32 {
        match self {
            Self::X86_64 => 0xc000_003e,
            Self::Aarch64 => 0xc000_00b7,
        }
    }
}

/// One system call of the table.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// What happens to it.
    pub rule: Rule,
    x86_64: Option<u32>,
    aarch64: Option<u32>,
}

impl Row {
    pub(super) const fn new(
        name: &'static str,
        x86_64: Option<u32>,
        aarch64: Option<u32>,
        rule: Rule,
    ) -> Self {
        Self {
            name,
            rule,
            x86_64,
            aarch64,
        }
    }

    /// Its number, where the instruction set has it.
    #[must_use]
    pub const fn number(&self, arch: Arch) -> Option<u32> {
        match arch {
            Arch::X86_64 => self.x86_64,
            Arch::Aarch64 => self.aarch64,
        }
    }
}
