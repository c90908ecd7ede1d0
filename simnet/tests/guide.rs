//! The `simnet` commands of the guide: each block is run as it stands there.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use guide::{Help, PRELUDE, Setting};

/// Shared with the tests of the agent's commands, which use more of it.
#[path = "../../tests/src/guide.rs"]
#[allow(dead_code, unreachable_pub)]
mod guide;

const SIMNET: &str = env!("CARGO_BIN_EXE_simnet");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn every_verb_and_flag_exists() {
    let help = Help::of(Path::new(SIMNET));
    let checked = guide::pages(&root()).into_iter().map(|page| {
        let text = guide::text(&root(), &page);
        help.check_page("simnet", &page, &text).unwrap_or_else(|wrong| panic!("{}", wrong.join("\n")))
    });
    assert!(checked.sum::<usize>() > 10, "the pages show commands of simnet");
}

#[test]
fn the_guide_to_simulations_works() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("guide-{}", std::process::id()));
    let bin = directory.join("bin");
    std::fs::create_dir_all(&bin).expect("our directory");
    std::os::unix::fs::symlink(SIMNET, bin.join("simnet")).expect("our directory");
    let mut script = PRELUDE.to_owned();
    for page in guide::pages(&root()) {
        let blocks = guide::blocks(&page, &guide::text(&root(), &page)).unwrap_or_else(|wrong| panic!("{wrong}"));
        for block in blocks.into_iter().filter(|block| block.setting == Setting::Simnet) {
            write!(script, "echo '== {page}:{}' >&2\n{}", block.line, block.script).expect("a text takes all");
        }
    }
    let output = Command::new("timeout")
        .args(["--kill-after=20", "900", "bash", "-c", &script])
        .current_dir(&directory)
        .env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").expect("it is set")))
        .stdin(Stdio::null())
        .output()
        .expect("there are timeout and bash");
    let [printed, told] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{}: what it printed:\n{printed}\n{told}", output.status);
    for words in ["trace hash", "ratio_mincent", "figures/report.html", "2 cases", "\"max_stretch\":0.01"] {
        assert!(
            printed.contains(words) || told.contains(words),
            "{words:?} is not in what it printed:\n{printed}\n{told}"
        );
    }
    let history = std::fs::read_to_string(directory.join("run.csv")).expect("the guide made it");
    assert!(history.starts_with("at_s,what,machine,bag,task\n"), "{history}");
    std::fs::remove_dir_all(&directory).expect("our directory");
}
