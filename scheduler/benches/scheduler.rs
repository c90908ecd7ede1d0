//! How long the scheduler's arithmetic takes, by length of the queue, each next to a plain implementation:
//! `cargo bench -p idlewood-scheduler --bench scheduler`. Figures and goals: `docs/lab/arithmetic.md`.

#[allow(dead_code, reason = "the other benchmark uses the rest")]
mod inputs;

use divan::{Bencher, black_box};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::split::{split_ranges, split_tasks};
use idlewood_scheduler::stretch::{self, EPSILON_DEFAULT, max_stretch_exact};
use idlewood_scheduler::summary::{self, Summary, SummaryForm};
use inputs::{LENGTHS, children, load, plain, report, request};

fn main() {
    divan::main();
}

#[divan::bench_group]
mod max_stretch {
    use super::*;

    #[divan::bench(args = LENGTHS)]
    fn exact(bencher: Bencher, bags: usize) {
        let load = load(bags, 0);
        bencher.bench_local(|| max_stretch_exact(black_box(&load)));
    }

    #[divan::bench(args = LENGTHS)]
    fn search(bencher: Bencher, bags: usize) {
        let load = load(bags, 0);
        bencher.bench_local(|| stretch::max_stretch(black_box(&load), EPSILON_DEFAULT));
    }

    #[divan::bench(args = LENGTHS)]
    fn plain(bencher: Bencher, bags: usize) {
        let load = load(bags, 0);
        bencher.bench_local(|| plain::max_stretch(black_box(&load)));
    }
}

#[divan::bench_group]
mod reorder {
    use super::*;

    /// A bag has come: the stretch and the order by deadline.
    #[divan::bench(args = LENGTHS)]
    fn by_deadline(bencher: Bencher, bags: usize) {
        let load = load(bags, 0);
        bencher.bench_local(|| black_box(&load).order(max_stretch_exact(black_box(&load))));
    }

    #[divan::bench(args = LENGTHS)]
    fn plain(bencher: Bencher, bags: usize) {
        let load = load(bags, 0);
        bencher.bench_local(|| plain::sorted(black_box(&load), plain::max_stretch(black_box(&load))));
    }
}

#[divan::bench_group]
mod summary_of_a_leaf {
    use super::*;

    #[divan::bench(args = LENGTHS)]
    fn whole(bencher: Bencher, bags: usize) {
        let load = load(bags, 0);
        bencher.bench_local(|| Summary::of_leaf(black_box(&load)));
    }

    #[divan::bench(args = LENGTHS, sample_count = 3, sample_size = 1)]
    fn plain(bencher: Bencher, bags: usize) {
        let load = load(bags, 0);
        bencher.bench_local(|| plain::matrix(black_box(&load)));
    }
}

#[divan::bench_group]
mod merge {
    use super::*;

    #[divan::bench(args = LENGTHS)]
    fn two_reports(bencher: Bencher, bags: usize) {
        let [one, other] = children(bags);
        bencher.with_inputs(|| one.clone()).bench_local_values(|mut one| {
            one.merge(black_box(&other));
            one
        });
    }

    #[divan::bench(args = LENGTHS)]
    fn plain(bencher: Bencher, bags: usize) {
        let [one, other] = children(bags).map(|child| plain::dense(&child));
        bencher.bench_local(|| plain::merge(black_box(&one), black_box(&other)));
    }
}

#[divan::bench_group]
mod encode {
    use super::*;

    #[divan::bench(args = LENGTHS)]
    fn report_of_16_leaves(bencher: Bencher, bags: usize) {
        let report = report(bags, 0);
        bencher.bench_local(|| black_box(&report).encode());
    }

    #[divan::bench(args = LENGTHS)]
    fn leaf(bencher: Bencher, bags: usize) {
        let summary = Summary::of_leaf(&load(bags, 0));
        bencher.bench_local(|| black_box(&summary).encode());
    }

    #[divan::bench(args = LENGTHS)]
    fn plain(bencher: Bencher, bags: usize) {
        let matrix = plain::dense(&report(bags, 0));
        bencher.bench_local(|| plain::encode(black_box(&matrix)));
    }
}

#[divan::bench_group]
mod decode {
    use super::*;

    #[divan::bench(args = LENGTHS)]
    fn report_of_16_leaves(bencher: Bencher, bags: usize) {
        let bytes = report(bags, 0).encode();
        bencher.bench_local(|| Summary::decode(black_box(&bytes)));
    }

    #[divan::bench(args = LENGTHS)]
    fn plain(bencher: Bencher, bags: usize) {
        let bytes = plain::encode(&plain::dense(&report(bags, 0)));
        bencher.bench_local(|| plain::decode(black_box(&bytes)));
    }
}

#[divan::bench_group]
mod router {
    use super::*;

    /// Two reports to one: what a router does with each report of a child.
    #[divan::bench(args = LENGTHS)]
    fn report(bencher: Bencher, bags: usize) {
        let [one, other] = children(bags).map(|child| child.flatten());
        bencher.bench_local(|| summary::report(SummaryForm::Horizons, &[black_box(&one), black_box(&other)]));
    }
}

#[divan::bench_group]
mod split {
    use super::*;

    #[divan::bench(args = LENGTHS)]
    fn tasks_and_ranges(bencher: Bencher, bags: usize) {
        let children = children(bags);
        let both = [&children[0], &children[1]];
        let request = request();
        let sizes = (request.application_size_mops, request.task_mops);
        let s_index = Summary::smallest_stretch(&both, request.tasks, request.age_s, sizes.0, sizes.1);
        bencher.bench_local(|| {
            let parts = split_tasks(black_box(&both), black_box(&request), s_index);
            split_ranges(IntervalSet::from(0..request.tasks), &parts)
        });
    }

    #[divan::bench]
    fn plain(bencher: Bencher) {
        bencher.bench_local(|| plain::split(black_box(1000), black_box([700, 900])));
    }
}

#[divan::bench_group]
mod route_one_request {
    use super::*;

    #[divan::bench(args = LENGTHS)]
    fn sparse(bencher: Bencher, bags: usize) {
        let children = children(bags);
        bencher.with_inputs(|| children.clone()).bench_local_values(|mut children| {
            let parts = inputs::route(&mut children);
            (parts, children)
        });
    }

    #[divan::bench(args = LENGTHS)]
    fn plain(bencher: Bencher, bags: usize) {
        let children = children(bags).map(|child| plain::dense(&child));
        bencher.with_inputs(|| children.clone()).bench_local_values(|mut children| {
            let parts = plain::route(&mut children);
            (parts, children)
        });
    }
}
