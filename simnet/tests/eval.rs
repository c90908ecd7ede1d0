//! `simnet eval` against the paper in whole numbers: Algorithm 1 as a definition of the maximum stretch, and
//! Algorithm 3 with the corrections of the design, in latest starts, without any rounding.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use idlewood_simnet::eval::{Answer, evaluate};
use proptest::prelude::*;

/// Denominator of every stretch: a power of 2, so that decimals and binary numbers mean the same.
const Q: i128 = 1 << 30;

/// A bag in whole numbers: seconds, Mop, Mop, quarters of a task.
#[derive(Clone, Copy, Debug)]
struct Bag {
    r: i128,
    w: i128,
    a: i128,
    quarters: i128,
}

#[derive(Clone, Debug)]
struct Queue {
    speed: i128,
    now: i128,
    preemptive: bool,
    running: Vec<i128>,
    bags: Vec<Bag>,
}

/// A query; the stretch in units of 1/Q s/Mop.
#[derive(Clone, Copy, Debug)]
struct Asked {
    stretch: i128,
    r: i128,
    w: i128,
    a: i128,
}

impl Queue {
    /// Work of a bag in quarters of a Mop.
    fn work(bag: &Bag) -> i128 {
        bag.quarters * bag.a
    }

    /// Moments are in units of 1/(4·s·q) s from here on, `q` the denominator of the stretch p/q.
    fn t0(&self, q: i128) -> i128 {
        4 * q * (self.speed * self.now + self.running.iter().sum::<i128>())
    }

    fn due(&self, r: i128, w: i128, p: i128, q: i128) -> i128 {
        4 * self.speed * (q * r + p * w)
    }

    fn by_deadline(&self, p: i128, q: i128) -> Vec<(i128, i128)> {
        let with_work = self.bags.iter().filter(|bag| bag.quarters > 0);
        let mut all: Vec<_> = with_work.map(|bag| (self.due(bag.r, bag.w, p, q), q * Self::work(bag))).collect();
        all.sort_unstable();
        all
    }

    /// Algorithm 1 at the stretch p/q.
    fn meets_deadlines(&self, p: i128, q: i128) -> bool {
        let mut end = self.t0(q);
        self.by_deadline(p, q).into_iter().all(|(due, work)| {
            end += work;
            end <= due
        })
    }

    /// Algorithm 3 with the corrections: h in units of 1/(4·Q) Mop.
    fn available(&self, asked: &Asked) -> i128 {
        let bags = self.by_deadline(asked.stretch, Q);
        let m = bags.len();
        let t0 = self.t0(Q);
        let d_new = self.due(asked.r, asked.w, asked.stretch, Q);
        let mut x = vec![i128::MAX; m + 1];
        for i in (0..m).rev() {
            x[i] = bags[i].0.min(x[i + 1]) - bags[i].1;
        }
        if x[0] < t0 {
            return 0;
        }
        let k = bags.iter().position(|bag| bag.0 >= d_new).unwrap_or(m);
        let e_k = t0 + bags[..k].iter().map(|bag| bag.1).sum::<i128>();
        (d_new.min(x[k]) - e_k).max(0)
    }

    fn document(&self, queries: &[Asked]) -> String {
        let list = |values: Vec<String>| values.join(", ");
        let running = list(self.running.iter().map(i128::to_string).collect());
        let bag = |bag: &Bag| {
            let Bag { r, w, a, quarters } = bag;
            format!(r#"{{"left": {}, "a": {a}, "w": {w}, "r": {r}}}"#, *quarters as f64 / 4.0)
        };
        let query = |asked: &Asked| {
            let Asked { stretch, r, w, a } = asked;
            format!(r#"{{"S": {:?}, "r": {r}, "w": {w}, "a": {a}}}"#, *stretch as f64 / Q as f64)
        };
        let mut document = String::new();
        write!(document, r#"{{"speed": {}, "slots": 1, "now": {}, "#, self.speed, self.now).unwrap();
        write!(document, r#""preemptive": {}, "running": [{running}], "#, self.preemptive).unwrap();
        write!(document, r#""queue": [{}], "#, list(self.bags.iter().map(bag).collect())).unwrap();
        write!(document, r#""queries": [{}]}}"#, list(queries.iter().map(query).collect())).unwrap();
        document
    }
}

/// Queues with ties in releases, sizes and deadlines, bags of different orders of magnitude, and none at all.
fn queues(bags: usize) -> impl Strategy<Value = Queue> {
    let age = prop_oneof![Just(0), Just(1000), 0..100_i128, 0..1_000_000_i128];
    let size = prop_oneof![Just(500_000), 1..100_i128, 1..10_000_000_i128];
    let task = prop_oneof![Just(100), 1..10_i128, 1..100_000_i128];
    let bag = (age, size, task, prop_oneof![0..12_i128, 0..400_i128]);
    let machine = (1..5000_i128, prop_oneof![Just(0), -1_000_000..1_000_000_i128], any::<bool>());
    (machine, prop::option::of(0..100_000_i128), prop::collection::vec(bag, 0..=bags)).prop_map(
        |((speed, now, preemptive), rest, bags)| {
            let bags = bags.into_iter().map(|(age, w, a, quarters)| Bag { r: now - age, w, a, quarters }).collect();
            let running = rest.filter(|_| !preemptive).into_iter().collect();
            Queue { speed, now, preemptive, running, bags }
        },
    )
}

/// A query by its stretch as a multiple of the queue's own, with its other numbers.
fn questions() -> impl Strategy<Value = (f64, i128, i128, i128)> {
    let factor = prop_oneof![Just(1.0), 0.9..1.1_f64, 0.2..1.0_f64, 1.0..4.0_f64, 1.0..1000.0_f64];
    let age = prop_oneof![Just(0), Just(1000), 0..100_000_i128];
    let size = prop_oneof![Just(500_000), 1..1000_i128, 1..100_000_000_i128];
    (factor, age, size, prop_oneof![Just(1), 1..100_i128, 1..100_000_i128])
}

/// A stretch in units of 2^-60 s/Mop.
fn fine(stretch: f64) -> i128 {
    (stretch * 2_f64.powi(60)) as i128
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn the_maximum_stretch_is_the_least_that_meets_all_deadlines(queue in queues(12)) {
        let evaluation = evaluate(&queue.document(&[])).unwrap();
        let fine_q = 1 << 60;
        for (stretch, error) in [(evaluation.max_stretch_exact, 1e-9), (evaluation.max_stretch, 1.000_001e-6)] {
            prop_assert!(queue.meets_deadlines(fine(stretch * (1.0 + 1e-12)) + 1, fine_q));
            if queue.bags.iter().any(|bag| bag.quarters > 0) {
                prop_assert!(!queue.meets_deadlines(fine(stretch * (1.0 - error)), fine_q));
            } else {
                prop_assert_eq!(stretch, 0.0);
            }
        }
    }

    #[test]
    fn availability_is_that_of_algorithm_3(queue in queues(10), questions in prop::collection::vec(questions(), 1..5)) {
        let own = evaluate(&queue.document(&[])).unwrap().max_stretch_exact;
        let asked: Vec<_> = questions
            .into_iter()
            .map(|(factor, age, w, a)| {
                let stretch = if own > 0.0 { own * factor } else { 0.01 * factor };
                Asked { stretch: (stretch * Q as f64).ceil() as i128, r: queue.now - age, w, a }
            })
            .collect();
        let answers = evaluate(&queue.document(&asked)).unwrap().answers;
        prop_assert_eq!(answers.len(), asked.len());
        for (asked, Answer { h, n }) in asked.iter().zip(answers) {
            let available = queue.available(asked);
            let exact = available as f64 / (4 * Q) as f64;
            let horizon_s = asked.stretch as f64 / Q as f64 * asked.w as f64;
            // Moments are rounded to the precision that remains of 53 bits, and work in proportion to the machine's
            // speed.
            let oldest = queue.bags.iter().map(|bag| bag.r.abs()).fold(asked.r.abs(), i128::max);
            let moments = 4e-15 * queue.speed as f64 * ((queue.now.abs() + oldest) as f64 + horizon_s);
            let scale = exact.max(queue.speed as f64 * horizon_s);
            prop_assert!((h - exact).abs() <= 1e-12 * scale + moments, "h {} and {}", h, exact);
            // The whole number below the true quotient, or the one above if only rounding separates them.
            let rounding = (moments * (4 * Q) as f64) as i128;
            let task = 4 * Q * asked.a;
            let (least, most) = ((available - rounding).div_euclid(task), (available + rounding) / task);
            let most_counted = i128::from(u64::MAX);
            let range = least.min(most_counted)..=most.min(most_counted);
            prop_assert!(range.contains(&i128::from(n)), "n {} for {} of {}", n, available, task);
        }
    }
}

fn eval(document: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_simnet"))
        .arg("eval")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(document.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn one_document_in_and_one_out() {
    let bag = Bag { r: 10, w: 4000, a: 100, quarters: 30 };
    let queue = Queue { speed: 100, now: 50, preemptive: true, running: vec![], bags: vec![bag] };
    let output = eval(&queue.document(&[Asked { stretch: Q / 8, r: 50, w: 3000, a: 700 }]));
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    // 40 s and 7.5 s for 4,000 Mop.
    assert!((answer["max_stretch_exact"].as_f64().unwrap() - 0.011875).abs() < 1e-15);
    assert!((answer["max_stretch"].as_f64().unwrap() - 0.011875).abs() < 0.011875e-6);
    // Due in 375 s, before the other bag, which is due in 460 s and takes 7.5 s.
    assert_eq!(answer["answers"], serde_json::json!([{ "h": 37_500.0, "n": 53 }]));
}

#[test]
fn wrong_input_exits_with_2_and_a_sentence_that_names_the_field() {
    let bag = Bag { r: 0, w: 400, a: 100, quarters: 4 };
    let queue = Queue { speed: 100, now: 50, preemptive: false, running: vec![7], bags: vec![bag; 3] };
    let document = queue.document(&[Asked { stretch: Q, r: 0, w: 3000, a: 1 }]);
    assert_eq!(eval(&document).status.code(), Some(0));
    for (old, new, field) in [
        ("\"speed\": 100", "\"speed\": -1", "speed"),
        ("\"slots\": 1", "\"slots\": 100000", "slots"),
        ("\"running\": [7]", "\"running\": [7, 7]", "running"),
        ("\"preemptive\": false", "\"preemptive\": true", "running"),
        ("\"w\": 400", "\"w\": 0", "queue[0].w"),
        ("\"w\": 400", "\"w\": NaN", "queue[0].w"),
        ("\"w\": 400", "\"weight\": 400", "queue[0].weight"),
        ("\"a\": 1}", "\"a\": 1e-9}", "queries[0].a"),
        ("\"a\": 1}", "\"a\": [1]}", "queries[0].a"),
        ("]}", "], \"seed\": 1}", "seed"),
    ] {
        assert!(document.contains(old), "{old}");
        let output = eval(&document.replacen(old, new, 1));
        let sentence = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{new}: {sentence}");
        assert!(output.stdout.is_empty());
        assert!(sentence.starts_with(&format!("error: {field} ")), "{sentence}");
        assert_eq!(sentence.lines().count(), 1, "{sentence}");
    }
    for garbage in ["", "{", "7", "[]", "\u{feff}{}"] {
        let output = eval(garbage);
        assert_eq!(output.status.code(), Some(2), "{garbage}");
        assert!(String::from_utf8(output.stderr).unwrap().starts_with("error: the document "), "{garbage}");
    }
}

proptest! {
    #[test]
    fn several_slots_have_no_greater_stretch_and_whole_tasks(
        queue in queues(8), questions in prop::collection::vec(questions(), 1..5), slots in 2_u32..9, ahead in 0..50_i128,
    ) {
        let own = evaluate(&queue.document(&[])).unwrap().max_stretch_exact;
        let asked: Vec<_> = questions
            .into_iter()
            .map(|(factor, age, w, a)| {
                let stretch = if own > 0.0 { own * factor } else { 0.01 * factor };
                Asked { stretch: (stretch * Q as f64).ceil() as i128, r: queue.now + ahead - age, w, a }
            })
            .collect();
        let one = queue.document(&asked);
        let several = one.replacen("\"slots\": 1", &format!("\"slots\": {slots}"), 1);
        let (one, several) = (evaluate(&one).unwrap(), evaluate(&several).unwrap());
        prop_assert!(several.max_stretch_exact <= one.max_stretch_exact);
        for (asked, Answer { h, n }) in asked.iter().zip(several.answers) {
            prop_assert_eq!(n, (h / asked.a as f64) as u64);
        }
    }
}
