//! Static checks of a program.
//!
//! Two steps. A reader of our own walks the sections that decide whether the file is a WASI command (types, imports,
//! exports) and words what is wrong for the person who built it; wasmtime's validator then checks everything else. It
//! costs milliseconds per megabyte, against a second for compiling.

use super::compile_cache;

/// Why a program cannot be run by any worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// The file is not WebAssembly.
    #[error("not a WebAssembly module: build the program with a wasm32-wasi (WASI preview 1) target")]
    NotWebAssembly,
    /// A component instead of a core module.
    #[error("a WebAssembly component, not a module: build it for wasm32-wasip1 instead of wasm32-wasip2")]
    Component,
    /// An import that no worker provides.
    #[error(
        "imports `{module}::{name}`, which is not WASI preview 1: build the program with a wasm32-wasi target and without other host interfaces"
    )]
    Import {
        /// The import's module.
        module: String,
        /// The import's name.
        name: String,
    },
    /// No entry point.
    #[error("has no `_start` export: build it as a command (a program with a main function), not as a library")]
    NoStart,
    /// The entry point is not a function without arguments and results.
    #[error("its `_start` export is not a function without arguments and results: build it as a WASI command")]
    WrongStart,
    /// WASI calls could not read their arguments.
    #[error("exports no memory named `memory`, which WASI calls need: export it when linking")]
    NoMemory,
    /// The validator's verdict.
    #[error("not a valid WebAssembly module: {reason}")]
    Malformed {
        /// The flaw.
        reason: String,
    },
}

/// The functions of WASI preview 1.
const PREVIEW1: [&str; 46] = [
    "args_get",
    "args_sizes_get",
    "clock_res_get",
    "clock_time_get",
    "environ_get",
    "environ_sizes_get",
    "fd_advise",
    "fd_allocate",
    "fd_close",
    "fd_datasync",
    "fd_fdstat_get",
    "fd_fdstat_set_flags",
    "fd_fdstat_set_rights",
    "fd_filestat_get",
    "fd_filestat_set_size",
    "fd_filestat_set_times",
    "fd_pread",
    "fd_prestat_dir_name",
    "fd_prestat_get",
    "fd_pwrite",
    "fd_read",
    "fd_readdir",
    "fd_renumber",
    "fd_seek",
    "fd_sync",
    "fd_tell",
    "fd_write",
    "path_create_directory",
    "path_filestat_get",
    "path_filestat_set_times",
    "path_link",
    "path_open",
    "path_readlink",
    "path_remove_directory",
    "path_rename",
    "path_symlink",
    "path_unlink_file",
    "poll_oneoff",
    "proc_exit",
    "proc_raise",
    "random_get",
    "sched_yield",
    "sock_accept",
    "sock_recv",
    "sock_send",
    "sock_shutdown",
];

/// The module name of preview 1's imports.
pub(super) const PREVIEW1_MODULE: &str = "wasi_snapshot_preview1";

/// Checks that `bytes` are a program that workers can run: a valid WebAssembly module that imports nothing but WASI
/// preview 1 and exports `_start` and `memory`. Neither compiles nor runs it; costs milliseconds per megabyte.
///
/// # Errors
/// [`ProgramError`]: one sentence that says what to do.
pub fn check_program(bytes: &[u8]) -> Result<(), ProgramError> {
    check_shape(bytes)?;
    let malformed = |error: wasmtime::Error| ProgramError::Malformed { reason: one_line(&format!("{error:#}")) };
    let engine = compile_cache::engine().map_err(malformed)?;
    wasmtime::Module::validate(&engine, bytes).map_err(malformed)
}

/// The part of [`check_program`] that needs no engine.
pub(super) fn check_shape(bytes: &[u8]) -> Result<(), ProgramError> {
    match (bytes.get(..4), bytes.get(4..8)) {
        (Some(b"\0asm"), Some([1, 0, 0, 0])) => {}
        (Some(b"\0asm"), Some([_, _, 1, 0])) => return Err(ProgramError::Component),
        _ => return Err(ProgramError::NotWebAssembly),
    }
    let outline = Outline::read(&bytes[8..])?;
    match outline.start {
        None => return Err(ProgramError::NoStart),
        Some(Start::OtherKind | Start::Function { takes_and_gives_nothing: false }) => {
            return Err(ProgramError::WrongStart);
        }
        Some(Start::Function { takes_and_gives_nothing: true }) => {}
    }
    if !outline.exports_memory {
        return Err(ProgramError::NoMemory);
    }
    Ok(())
}

/// `text` on one line, cut to a length that suits a terminal.
pub(super) fn one_line(text: &str) -> String {
    let mut line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() > 300 {
        line = line.chars().take(299).chain(['…']).collect();
    }
    line
}

enum Start {
    Function { takes_and_gives_nothing: bool },
    OtherKind,
}

/// The parts of a module that decide whether it is a WASI command.
#[derive(Default)]
struct Outline {
    start: Option<Start>,
    exports_memory: bool,
}

/// The bytes end too early or violate the format.
struct Cut;

impl From<Cut> for ProgramError {
    fn from(Cut: Cut) -> Self {
        ProgramError::Malformed { reason: "the file is damaged or cut off".to_owned() }
    }
}

const KIND_FUNCTION: u8 = 0;
const KIND_MEMORY: u8 = 2;

impl Outline {
    /// Reads the sections after the header. Refuses the first import that is not a function of preview 1.
    fn read(bytes: &[u8]) -> Result<Self, ProgramError> {
        let mut outline = Outline::default();
        let mut rest = Reader { bytes };
        // For each function type and each function: whether it has no arguments and results.
        let mut types: Vec<bool> = Vec::new();
        let mut functions: Vec<bool> = Vec::new();
        while !rest.bytes.is_empty() {
            let section = rest.byte()?;
            let mut body = Reader { bytes: rest.sized()? };
            match section {
                1 => {
                    for _ in 0..body.number()? {
                        match body.byte()? {
                            0x60 => {
                                let (takes, gives) = (body.sized()?.len(), body.sized()?.len());
                                types.push(takes == 0 && gives == 0);
                            }
                            _ => {
                                let reason = "it uses garbage-collected types, which workers do not support".to_owned();
                                return Err(ProgramError::Malformed { reason });
                            }
                        }
                    }
                }
                2 => {
                    for _ in 0..body.number()? {
                        let (module, name, kind) = (body.name()?, body.name()?, body.byte()?);
                        let known = module == PREVIEW1_MODULE && PREVIEW1.contains(&name.as_str());
                        if !known || kind != KIND_FUNCTION {
                            return Err(ProgramError::Import { module: one_line(&module), name: one_line(&name) });
                        }
                        functions.push(types.get(body.number()? as usize) == Some(&true));
                    }
                }
                3 => {
                    for _ in 0..body.number()? {
                        functions.push(types.get(body.number()? as usize) == Some(&true));
                    }
                }
                7 => {
                    for _ in 0..body.number()? {
                        let (name, kind, index) = (body.name()?, body.byte()?, body.number()?);
                        match (name.as_str(), kind) {
                            ("_start", KIND_FUNCTION) => {
                                let takes_and_gives_nothing = functions.get(index as usize) == Some(&true);
                                outline.start = Some(Start::Function { takes_and_gives_nothing });
                            }
                            ("_start", _) => outline.start = Some(Start::OtherKind),
                            ("memory", KIND_MEMORY) => outline.exports_memory = true,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(outline)
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, Cut> {
        let (first, rest) = self.bytes.split_first().ok_or(Cut)?;
        self.bytes = rest;
        Ok(*first)
    }

    /// An unsigned LEB128 number of at most 32 bits.
    fn number(&mut self) -> Result<u32, Cut> {
        let mut value = 0_u64;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return u32::try_from(value).map_err(|_| Cut);
            }
        }
        Err(Cut)
    }

    /// As many bytes as the number before them tells.
    fn sized(&mut self) -> Result<&'a [u8], Cut> {
        let length = self.number()? as usize;
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(Cut)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn name(&mut self) -> Result<String, Cut> {
        Ok(String::from_utf8_lossy(self.sized()?).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBE: &[u8] = include_bytes!("../../tasks/probe/probe.wasm");
    const NOOP: &[u8] = include_bytes!("../../tasks/noop/noop.wasm");

    /// A module of the sections given as (number, content).
    fn module(sections: &[(u8, &[u8])]) -> Vec<u8> {
        let mut bytes = b"\0asm\x01\0\0\0".to_vec();
        for (number, content) in sections {
            bytes.extend([*number, u8::try_from(content.len()).unwrap()]);
            bytes.extend(*content);
        }
        bytes
    }

    const TYPES: (u8, &[u8]) = (1, b"\x02\x60\x00\x00\x60\x01\x7f\x00");
    const ONE_FUNCTION: (u8, &[u8]) = (3, b"\x01\x00");
    const MEMORY: (u8, &[u8]) = (5, b"\x01\x00\x01");
    const CODE: (u8, &[u8]) = (10, b"\x01\x02\x00\x0b");

    fn complaint(bytes: &[u8]) -> String {
        check_program(bytes).expect_err("should be refused").to_string()
    }

    #[test]
    fn commands_pass() {
        assert_eq!(check_program(PROBE), Ok(()));
        assert_eq!(check_program(NOOP), Ok(()));
        let exports: &[u8] = b"\x02\x06_start\x00\x00\x06memory\x02\x00";
        assert_eq!(check_program(&module(&[TYPES, ONE_FUNCTION, MEMORY, (7, exports), CODE])), Ok(()));
    }

    #[test]
    fn flaws_are_named() {
        for other in [&b""[..], b"\0as", b"\0asm", b"\x7fELF\x02\x01\x01\0\0", b"#!/bin/sh\necho\n", b"\0asm\x02\0\0\0"]
        {
            assert!(complaint(other).starts_with("not a WebAssembly module"), "{other:?}");
        }
        assert!(complaint(b"\0asm\x0d\0\x01\0").starts_with("a WebAssembly component"));

        let foreign: &[u8] = b"\x01\x03env\x03foo\x00\x00";
        let said = complaint(&module(&[TYPES, (2, foreign), MEMORY]));
        assert!(said.starts_with("imports `env::foo`, which is not WASI preview 1"), "{said}");
        let older: &[u8] = b"\x01\x0dwasi_unstable\x08fd_write\x00\x00";
        assert!(complaint(&module(&[TYPES, (2, older)])).starts_with("imports `wasi_unstable::fd_write`"));
        let unknown: &[u8] = b"\x01\x16wasi_snapshot_preview1\x03foo\x00\x00";
        assert!(complaint(&module(&[TYPES, (2, unknown)])).starts_with("imports `wasi_snapshot_preview1::foo`"));

        assert!(complaint(&module(&[])).starts_with("has no `_start` export"));
        let library: &[u8] = b"\x02\x0b_initialize\x00\x00\x06memory\x02\x00";
        let said = complaint(&module(&[TYPES, ONE_FUNCTION, MEMORY, (7, library), CODE]));
        assert!(said.starts_with("has no `_start` export"), "{said}");
        let takes_one: (u8, &[u8]) = (3, b"\x01\x01");
        let exports: &[u8] = b"\x02\x06_start\x00\x00\x06memory\x02\x00";
        assert_eq!(
            check_program(&module(&[TYPES, takes_one, MEMORY, (7, exports), CODE])),
            Err(ProgramError::WrongStart)
        );
        let start_is_memory: &[u8] = b"\x01\x06_start\x02\x00";
        assert_eq!(check_program(&module(&[MEMORY, (7, start_is_memory)])), Err(ProgramError::WrongStart));
        let no_memory: &[u8] = b"\x01\x06_start\x00\x00";
        assert_eq!(check_program(&module(&[TYPES, ONE_FUNCTION, (7, no_memory), CODE])), Err(ProgramError::NoMemory));

        let unbalanced: (u8, &[u8]) = (10, b"\x01\x03\x00\x1a\x0b");
        let said = complaint(&module(&[TYPES, ONE_FUNCTION, MEMORY, (7, exports), unbalanced]));
        assert!(said.starts_with("not a valid WebAssembly module: "), "{said}");
        assert!(!said.contains('\n'));
    }

    #[test]
    fn no_prefix_and_no_flipped_bit_makes_it_panic() {
        for cut in (0..1500).chain((1500..PROBE.len()).step_by(97)) {
            assert!(check_program(&PROBE[..cut]).is_err(), "a prefix of {cut} bytes");
        }
        let mut bytes = NOOP.to_vec();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            // Any verdict will do.
            drop(check_program(&bytes));
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn the_list_of_functions_is_the_runtime_s() {
        let engine = compile_cache::engine().unwrap();
        let mut linker: wasmtime::Linker<wasmtime_wasi::p1::WasiP1Ctx> = wasmtime::Linker::new(&engine);
        wasmtime_wasi::p1::add_to_linker_async(&mut linker, |state| state).unwrap();
        let mut store = wasmtime::Store::new(&engine, wasmtime_wasi::WasiCtxBuilder::new().build_p1());
        let mut provided: Vec<String> =
            linker.iter(&mut store).map(|(module, name, _)| format!("{module}::{name}")).collect();
        provided.sort();
        let ours: Vec<String> = PREVIEW1.iter().map(|name| format!("{PREVIEW1_MODULE}::{name}")).collect();
        assert_eq!(provided, ours);
    }
}
