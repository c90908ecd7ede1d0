//! One operation at a time for valgrind to count: `instructions OPERATION BAGS`. `instructions.sh` runs them all; `copies` is by
//! machines instead.

mod copies;
#[allow(dead_code, reason = "the other benchmark uses the rest")]
mod inputs;

use std::hint::black_box;
use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::split::{split_ranges, split_tasks};
use idlewood_scheduler::stretch::{EPSILON_DEFAULT, max_stretch, max_stretch_exact};
use idlewood_scheduler::summary::{self, Summary, SummaryForm};
use idlewood_scheduler::{Effect, Message};
use inputs::{children, load, plain, report, request, route};

/// What is counted, by its name: `--toggle-collect='*measured*'`.
#[inline(never)]
fn measured<T>(operation: impl FnOnce() -> T) {
    black_box(operation());
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(operation), Some(Ok(bags))) = (arguments.next(), arguments.next().map(|bags| bags.parse())) else {
        // `cargo bench` runs every target.
        println!("instructions are counted by scheduler/benches/instructions.sh");
        return;
    };
    if operation == "copies" {
        let (mut submitter, first) = copies::submitter(bags as u64);
        let (mut effects, now) = (Vec::new(), Time::ZERO + Duration::from_secs(1));
        measured(|| submitter.handle(now, first, &mut effects));
        let is_copy = |effect: &&Effect| matches!(effect, Effect::Send { message: Message::Request { .. }, .. });
        assert!(effects.iter().filter(is_copy).count() + 1 >= bags, "each of the others gets copies");
        return;
    }
    let load = load(bags, 0);
    match operation.as_str() {
        "max_stretch_exact" => measured(|| max_stretch_exact(&load)),
        "max_stretch_search" => measured(|| max_stretch(&load, EPSILON_DEFAULT)),
        "max_stretch_plain" => measured(|| plain::max_stretch(&load)),
        "reorder" => measured(|| load.order(max_stretch_exact(&load))),
        "summary" => measured(|| Summary::of_leaf(&load)),
        "merge" => {
            let [mut one, other] = children(bags);
            measured(|| one.merge(&other));
        }
        "merge_plain" => {
            let [one, other] = children(bags).map(|child| plain::dense(&child));
            measured(|| plain::merge(&one, &other));
        }
        "encode" => {
            let report = report(bags, 0);
            measured(|| report.encode());
        }
        "decode" => {
            let bytes = report(bags, 0).encode();
            measured(|| Summary::decode(&bytes));
        }
        "report" => {
            let [one, other] = children(bags).map(|child| child.flatten());
            measured(|| summary::report(SummaryForm::Horizons, &[&one, &other]));
        }
        "encode_leaf" => {
            let leaf = Summary::of_leaf(&load);
            measured(|| leaf.encode());
        }
        "split" => {
            let [one, other] = children(bags);
            let (both, request) = ([&one, &other], request());
            let sizes = (request.application_size_mops, request.task_mops);
            let s_index = Summary::smallest_stretch(&both, request.tasks, request.age_s, sizes.0, sizes.1);
            let set = IntervalSet::from(0..request.tasks);
            measured(|| split_ranges(set, &split_tasks(&both, &request, s_index)));
        }
        "route" => {
            let mut children = children(bags);
            measured(|| route(&mut children));
        }
        other => eprintln!("no operation {other}"),
    }
}
