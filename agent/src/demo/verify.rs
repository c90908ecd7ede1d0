//! Assembles the picture from the tasks' outputs, and compares each tile with an independent render.

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use anyhow::Context as _;
use idlewood_api::TaskResult;
use idlewood_api::client::Client;
use idlewood_trust::manifest::TaskOutput;

use super::grid::Interrupt;
use crate::tiles::{Canvas, Picture};

/// Writes `demo.png` into `out`; returns how many tiles are right.
///
/// # Errors
/// When a result is unavailable or does not fit the picture, the picture cannot be written, or the user interrupts.
pub(super) fn check(
    client: &Client,
    bag: &str,
    picture: &Picture,
    results: &[TaskResult],
    out: &Path,
    interrupt: &Interrupt,
) -> anyhow::Result<u64> {
    let mut canvas = Canvas::new(picture.clone())?;
    let mut tiles = Vec::with_capacity(results.len());
    for result in results.iter().filter(|result| result.success) {
        interrupt.check()?;
        let output = TaskOutput::decode(&client.output(bag, result)?)?;
        let tile = output.files.get("tile.rgb").with_context(|| format!("task {} left no tile.rgb", result.index))?;
        let index = u32::try_from(result.index)?;
        canvas.place(index, tile)?;
        tiles.push((index, tile.to_vec()));
    }
    let path = out.join("demo.png");
    let file = std::fs::File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    canvas.write_png(std::io::BufWriter::new(file)).with_context(|| format!("cannot write {}", path.display()))?;
    let equal = count_equal(picture, &tiles, interrupt);
    interrupt.check()?;
    Ok(equal)
}

/// Renders on all processors; a tile at a time, until interrupted.
fn count_equal(picture: &Picture, tiles: &[(u32, Vec<u8>)], interrupt: &Interrupt) -> u64 {
    let next = AtomicUsize::new(0);
    let equal = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !interrupt.is_set()
                    && let Some((index, tile)) = tiles.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    if picture.render(*index).as_ref() == Some(tile) {
                        equal.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    equal.into_inner()
}
