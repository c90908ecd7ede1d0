//! `idlewood demo`: a real bag on a real grid, on one machine.
//!
//! Agent processes with state directories of their own form a grid on loopback. One of them, drawn by the seed, gets a
//! bag that renders a picture by tiles. Meanwhile one machine crashes (SIGKILL) and comes back, and the owner of
//! another returns for a few seconds. Every tile is then compared with a render that shares no code with the task. The
//! summary has only the agents' answers and this program's own observations.

pub(crate) mod grid;
mod verify;

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use idlewood_api::{BagState, SubmitRequest};
use idlewood_trust::manifest::Input;
use idlewood_worker::speed;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde::Serialize;

use self::grid::{Grid, Interrupt};
use crate::tiles::Picture;

/// The task program: `agent/tasks/tile/tile.c`, built by `agent/tasks/build.sh`.
const TILE_PROGRAM: &[u8] = include_bytes!("../tasks/tile/tile.wasm");
/// How long the agents may take to become one grid.
const FORM_TIMEOUT: Duration = Duration::from_secs(45);
/// How long the bag may take.
const BAG_TIMEOUT: Duration = Duration::from_secs(600);
/// How often the agents are asked for progress.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// A bag of so many tasks lasts long enough for a crash and an owner's return; smaller ones need not show them.
const TASKS_TO_SHOW_ALL: u64 = 64;
/// How long the crashed machine is down, and how long the owner stays.
const DOWN_TIME: Duration = Duration::from_secs(2);
const OWNER_TIME: Duration = Duration::from_secs(3);
/// How long the owner waits to see their machine free.
const RECLAIM_TIMEOUT: Duration = Duration::from_secs(5);
/// Width and height of the picture, about.
const PICTURE_PIXELS: u64 = 1024;

/// Options of `idlewood demo`.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// Agent processes, at least 3: a submitter, one that crashes, one whose owner returns.
    pub agents: u32,
    /// Tasks of the bag: tiles of the picture.
    pub tasks: u64,
    /// Draws the submitter, the victims and the picture's region.
    pub seed: u64,
    /// Directory of `demo.png`.
    pub out: PathBuf,
    /// No progress on stderr.
    pub quiet: bool,
}

/// The result of a demo.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct Summary {
    /// Agent processes.
    pub agents: u32,
    /// Tasks submitted.
    pub tasks: u64,
    /// Tasks with a result.
    pub completed: u64,
    /// Tasks without a result.
    pub lost: u64,
    /// Tasks that were issued again.
    pub reissued: u64,
    /// Results of tasks that were finished already.
    pub duplicates: u64,
    /// Tiles equal to the independent render.
    pub verified: u64,
    /// Agents killed while they held tasks.
    pub crashed: u32,
    /// Machines seen frozen for their owner.
    pub reclaimed: u32,
    /// From submission to the last result.
    pub makespan_s: f64,
    /// (C − r)/w of the bag, in s/Mop.
    pub max_stretch: f64,
    /// Height of the tree, by its root.
    pub tree_height: u32,
    /// Mean over the agents.
    pub bytes_sent_per_agent: f64,
    /// Machines whose results were accepted.
    pub machines: u64,
    /// Seed.
    pub seed: u64,
    /// The picture.
    pub picture: String,
}

impl Summary {
    /// Whether every task has a verified result.
    pub fn is_success(&self) -> bool {
        self.lost == 0 && self.verified == self.tasks
    }
}

/// Runs the demo.
///
/// # Errors
/// When a step fails, or the user interrupts; nothing is left running.
pub fn run(options: &DemoOptions) -> anyhow::Result<Summary> {
    ensure!(options.agents >= 3, "the demo needs at least 3 agents: a submitter, one to crash, one with an owner");
    ensure!((1..=4096).contains(&options.tasks), "the demo renders between 1 and 4096 tiles");
    std::fs::create_dir_all(&options.out).with_context(|| format!("cannot create {}", options.out.display()))?;
    let interrupt = Interrupt::listen()?;
    let mut show = Show::new(options.quiet);
    let mut random = ChaCha8Rng::seed_from_u64(options.seed);
    let picture = picture(options);

    show.line(&format!("starting {} agents on loopback", options.agents));
    let speed_mops = speed::measure_for(Duration::from_millis(500));
    let mut grid = Grid::start("idlewood-demo-", options.agents as usize, speed_mops, &interrupt)?;
    grid.wait_until_formed(FORM_TIMEOUT, &interrupt)?;
    let mut order: Vec<usize> = (0..grid.agents.len()).collect();
    order.shuffle(&mut random);
    let [submitter, owned, ref victims @ ..] = order[..] else { bail!("too few agents") };

    let client = grid.agents[submitter].client()?;
    let program = TILE_PROGRAM.to_vec();
    let hash = blake3::hash(&program);
    let mut file = tempfile::tempfile().context("cannot create a temporary file")?;
    file.write_all(&program).context("cannot write a temporary file")?;
    std::io::Seek::rewind(&mut file).context("cannot read a temporary file")?;
    interrupt.check()?;
    client.upload(hash, &file)?;
    interrupt.check()?;
    let bag = client.submit(&submission(&picture, options.tasks, hash, program.len() as u64))?;
    show.line(&format!("agent {submitter} submitted bag {} of {} tasks", &bag.id[..12], bag.tasks));

    let mut story =
        Story { victims: victims.to_vec(), owned, owner_first: random.random_bool(0.5), ..Story::default() };
    let done = story.watch(&mut grid, &client, &bag.id, &mut show, &interrupt)?;
    show.line("checking every tile against an independent render");
    let results = client.results(&bag.id)?;
    let verified = verify::check(&client, &bag.id, &picture, &results, &options.out, &interrupt)?;
    let statuses: Vec<idlewood_api::Status> =
        grid.agents.iter().filter_map(|agent| agent.client().ok()?.status().ok()).collect();
    let machines: BTreeMap<&str, u64> = results.iter().map(|result| (result.machine.as_str(), 1)).collect();
    let summary = Summary {
        agents: options.agents,
        tasks: options.tasks,
        completed: done.done,
        lost: options.tasks.saturating_sub(done.done),
        reissued: done.reissued,
        duplicates: done.duplicates,
        verified,
        crashed: story.crashed,
        reclaimed: story.reclaimed,
        makespan_s: done.elapsed_s,
        max_stretch: done.stretch.unwrap_or(0.0),
        tree_height: statuses.iter().map(|status| status.grid_height).max().unwrap_or(0),
        bytes_sent_per_agent: statuses.iter().map(|status| status.bytes_sent as f64).sum::<f64>()
            / statuses.len().max(1) as f64,
        machines: machines.len() as u64,
        seed: options.seed,
        picture: options.out.join("demo.png").display().to_string(),
    };
    grid.stop();
    Ok(summary)
}

/// A picture in exactly as many tiles as there are tasks: the most square arrangement.
fn picture(options: &DemoOptions) -> Picture {
    let rows = (1..=options.tasks.isqrt()).rev().find(|rows| options.tasks.is_multiple_of(*rows)).unwrap_or(1);
    let columns = options.tasks / rows;
    let tile = (PICTURE_PIXELS / columns.max(rows)).clamp(8, 128);
    let base = Picture::demo(options.seed);
    Picture { width: (tile * columns) as u32, height: (tile * rows) as u32, tile: tile as u32, ..base }
}

fn submission(picture: &Picture, tasks: u64, program: blake3::Hash, bytes: u64) -> SubmitRequest {
    let blob = idlewood_scheduler::BlobId(*program.as_bytes());
    let program = Input { name: "tile.wasm".to_owned(), blob, bytes };
    SubmitRequest::plain("demo", tasks, program, picture.args())
}

/// The events of the demo while the bag runs.
#[derive(Debug, Default)]
struct Story {
    /// Agents that may crash, in order of preference.
    victims: Vec<usize>,
    owned: usize,
    /// Whether the owner returns before the crash.
    owner_first: bool,
    /// Agents killed while they held tasks.
    crashed: u32,
    /// Machines seen frozen for their owner.
    reclaimed: u32,
    /// The crashed agent and when, until it is started again.
    down: Option<(usize, Instant)>,
    /// When the owner returned, while present.
    owner_since: Option<Instant>,
}

impl Story {
    /// Follows the bag to its end, and makes the events happen.
    fn watch(
        &mut self,
        grid: &mut Grid,
        client: &idlewood_api::client::Client,
        id: &str,
        show: &mut Show,
        interrupt: &Interrupt,
    ) -> anyhow::Result<idlewood_api::Bag> {
        let begin = Instant::now();
        loop {
            interrupt.check()?;
            ensure!(begin.elapsed() < BAG_TIMEOUT, "the bag did not finish within {} s", BAG_TIMEOUT.as_secs());
            let bag = client.bag(id)?.bag;
            show.progress(&bag);
            if bag.state.is_closed() {
                ensure!(
                    bag.state == BagState::Succeeded,
                    "the bag ended as {:?}: {} tasks failed",
                    bag.state,
                    bag.failed
                );
                self.finish(grid, show, interrupt)?;
                self.check(bag.tasks)?;
                return Ok(bag);
            }
            if bag.state == BagState::Running && bag.placed > 0 {
                // A small bag may end before the next look.
                let small = bag.tasks < TASKS_TO_SHOW_ALL;
                let (crash_due, owner_due) = if self.owner_first { (3, 8) } else { (8, 3) };
                if self.crashed == 0 && (small || bag.done * crash_due >= bag.tasks) {
                    self.crash(grid, show)?;
                }
                if self.reclaimed == 0 && (small || bag.done * owner_due >= bag.tasks) {
                    self.owner_returns(grid, show, interrupt)?;
                }
            }
            self.end_due_events(grid, show, interrupt)?;
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Checks that all events happened.
    fn check(&self, tasks: u64) -> anyhow::Result<()> {
        let missing = match (self.crashed, self.reclaimed) {
            _ if tasks < TASKS_TO_SHOW_ALL => return Ok(()),
            (0, 0) => "a machine could crash or its owner return",
            (0, _) => "a machine that held tasks could crash",
            (_, 0) => "the owner of a machine could return",
            _ => return Ok(()),
        };
        bail!("the bag of {tasks} tasks was over before {missing}: run the demo again, with more --tasks")
    }

    /// Kills the first of the victims that holds tasks; if none does, the next look may find one.
    fn crash(&mut self, grid: &mut Grid, show: &mut Show) -> anyhow::Result<()> {
        for &victim in &self.victims {
            let agent = &mut grid.agents[victim];
            let holds: u64 = agent.status()?.held.iter().map(|held| held.waiting + held.running).sum();
            if holds > 0 {
                agent.kill();
                self.down = Some((victim, Instant::now()));
                self.crashed += 1;
                show.line(&format!("agent {victim} crashed (SIGKILL) with {holds} tasks in its queue"));
                return Ok(());
            }
        }
        Ok(())
    }

    fn owner_returns(&mut self, grid: &Grid, show: &mut Show, interrupt: &Interrupt) -> anyhow::Result<()> {
        let agent = &grid.agents[self.owned];
        agent.set_owner(true)?;
        let back = Instant::now();
        while agent.status()?.activity != "suspended" {
            interrupt.check()?;
            ensure!(back.elapsed() < RECLAIM_TIMEOUT, "agent {} did not give its machine back", self.owned);
            std::thread::sleep(Duration::from_millis(10));
        }
        self.reclaimed += 1;
        self.owner_since = Some(back);
        show.line(&format!(
            "the owner of agent {} is back: frozen within {} ms",
            self.owned,
            back.elapsed().as_millis()
        ));
        Ok(())
    }

    /// Ends events whose time is over.
    fn end_due_events(&mut self, grid: &mut Grid, show: &mut Show, interrupt: &Interrupt) -> anyhow::Result<()> {
        if let Some((victim, _)) = self.down.take_if(|(_, at)| at.elapsed() >= DOWN_TIME) {
            restart(grid, victim, show, interrupt)?;
        }
        if self.owner_since.take_if(|since| since.elapsed() >= OWNER_TIME).is_some() {
            self.owner_leaves(grid, show)?;
        }
        Ok(())
    }

    fn owner_leaves(&self, grid: &Grid, show: &mut Show) -> anyhow::Result<()> {
        grid.agents[self.owned].set_owner(false)?;
        show.line(&format!("the owner of agent {} left: its tasks go on", self.owned));
        Ok(())
    }

    /// Ends all events with the bag.
    fn finish(&mut self, grid: &mut Grid, show: &mut Show, interrupt: &Interrupt) -> anyhow::Result<()> {
        if let Some((victim, _)) = self.down.take() {
            restart(grid, victim, show, interrupt)?;
        }
        if self.owner_since.take().is_some() {
            self.owner_leaves(grid, show)?;
        }
        Ok(())
    }
}

fn restart(grid: &mut Grid, victim: usize, show: &mut Show, interrupt: &Interrupt) -> anyhow::Result<()> {
    grid.restart(victim, interrupt)?;
    show.line(&format!("agent {victim} started again"));
    Ok(())
}

/// Progress for people, on stderr.
struct Show {
    quiet: bool,
    terminal: bool,
    begin: Instant,
    /// When a line without a terminal was last shown, and the tasks done then; `None` while measuring.
    last: Option<(Instant, Option<u64>)>,
}

impl Show {
    fn new(quiet: bool) -> Self {
        Self { quiet, terminal: std::io::stderr().is_terminal(), begin: Instant::now(), last: None }
    }

    fn line(&mut self, line: &str) {
        if !self.quiet {
            let clear = if self.terminal { "\r\x1b[2K" } else { "" };
            eprintln!("{clear}{:6.1} s  {line}", self.begin.elapsed().as_secs_f64());
        }
    }

    fn progress(&mut self, bag: &idlewood_api::Bag) {
        if self.quiet {
            return;
        }
        let at = self.begin.elapsed().as_secs_f64();
        let line = match bag.stretch {
            None => format!("{at:6.1} s  measuring the first task"),
            Some(stretch) => format!(
                "{at:6.1} s  {}/{} tasks, {} machines, stretch {stretch:.2e} s/Mop",
                bag.done, bag.tasks, bag.machines
            ),
        };
        if self.terminal {
            let width = 30;
            let filled = (bag.done * width / bag.tasks.max(1)) as usize;
            eprint!("\r\x1b[2K{line} [{}{}]", "#".repeat(filled), ".".repeat(width as usize - filled));
            return;
        }
        // Without a terminal, a line for every second with progress.
        let done = bag.stretch.map(|_| bag.done);
        let is_due = self.last.is_none_or(|(at, last)| at.elapsed() >= Duration::from_secs(1) && last != done);
        if is_due {
            self.last = Some((Instant::now(), done));
            eprintln!("{line}");
        }
    }
}

impl Drop for Show {
    fn drop(&mut self) {
        if self.terminal && !self.quiet {
            eprintln!();
        }
    }
}
