//! The figures of each experiment, with the papers' published values beside ours.
//!
//! Published values are those stated in the text of Celaya and Marchal (2010, §7.2); its curves are not in the text.

use serde_json::Value;

use super::which::Experiment;
use crate::figure::{Axis, Figure, Point, Scale, Series};

/// The paper's stretch relative to MinCent at 1,000 machines: "still under 25 %".
const FAIRNESS_PUBLISHED: [(f64, f64); 1] = [(1000.0, 1.25)];
/// First come, first served: "a maximum stretch almost twice higher" than that.
const FCFS_PUBLISHED: [(f64, f64); 1] = [(1000.0, 2.5)];
/// The authors' later code, measured here: without failures from 50 to 1,000 machines.
const AUTHORS_CODE: [(f64, f64); 2] = [(50.0, 1.12), (1000.0, 1.23)];
/// Ours by the rival of the same objective: a user's bags are one application.
const OURS: &str = "ratio_mincent_submitters";
/// Largest update time at 1,000 machines and 10 kB/s, in seconds.
const UPDATE_TIME_PUBLISHED_S: f64 = 3.68;
/// Table 1: limit in B/s, largest update time in s, mean and peak use of links in percent.
const TABLE1_PUBLISHED: [(f64, f64, f64, f64); 5] = [
    (2_500.0, 12.3, 2.41, 11.41),
    (5_000.0, 6.61, 3.78, 16.43),
    (10_000.0, 3.68, 4.28, 24.88),
    (20_000.0, 2.33, 5.0, 40.45),
    (40_000.0, 1.81, 5.84, 72.63),
];
/// Shares at which a row has the quantile of update times.
pub(super) const UPDATE_SHARES: [f64; 13] = [0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99];

/// The figures of a summary, by the name of their file.
pub(crate) fn figures(experiment: Experiment, summary: &Value) -> Vec<(String, Figure)> {
    let rows = Rows(summary["rows"].as_array().map_or(&[], Vec::as_slice));
    match experiment {
        Experiment::Fairness => [10.0, 300.0].into_iter().filter_map(|interval| fairness(&rows, interval)).collect(),
        Experiment::Updates => vec![("updates".to_owned(), updates(&rows))],
        Experiment::Table1 => vec![table1_time(&rows), table1_links(&rows)],
        Experiment::Bound => vec![("bound".to_owned(), bound(&rows))],
        Experiment::Scale => vec![scale_stretch(&rows), scale_traffic(&rows)],
        Experiment::Desktops => desktops(&rows),
        Experiment::Submitters | Experiment::Loads => Vec::new(),
    }
}

/// The rows of a summary.
struct Rows<'a>(&'a [Value]);

impl<'a> Rows<'a> {
    /// Rows with this text or number in this field.
    fn with(&self, field: &'a str, value: &'a Value) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |row| row[field] == *value)
    }

    /// The distinct values of a field, in order.
    fn values(&self, field: &str) -> Vec<&'a Value> {
        let mut values: Vec<&Value> = Vec::new();
        for row in self.0 {
            if !row[field].is_null() && !values.contains(&&row[field]) {
                values.push(&row[field]);
            }
        }
        values
    }
}

/// The point of a row, if it has both coordinates.
fn point(row: &Value, x: &str, y: &str) -> Option<Point> {
    let interval = &row[format!("{y}_ci95")];
    let interval = interval[0].as_f64().zip(interval[1].as_f64()).map(|(low, high)| [low, high]);
    Some(Point { x: row[x].as_f64()?, y: row[y].as_f64()?, interval })
}

fn series<'a>(name: &str, rows: impl Iterator<Item = &'a Value>, x: &str, y: &str) -> Series {
    let points = rows.filter_map(|row| point(row, x, y)).collect();
    Series { name: name.to_owned(), points, is_line: true, is_published: false }
}

/// A series for each size of grids.
fn by_size(name: &str, rows: &Rows<'_>, x: &str, y: &str) -> Vec<Series> {
    let of_size = |nodes| series(&format!("{name}, {nodes} machines"), rows.with("nodes", nodes), x, y);
    rows.values("nodes").into_iter().map(of_size).collect()
}

fn published(name: &str, points: &[(f64, f64)]) -> Series {
    let points = points.iter().map(|&(x, y)| Point { x, y, interval: None }).collect();
    Series { name: name.to_owned(), points, is_line: false, is_published: true }
}

fn axis(label: &str, scale: Scale) -> Axis {
    Axis { label: label.to_owned(), scale }
}

fn fairness(rows: &Rows<'_>, interval_s: f64) -> Option<(String, Figure)> {
    let is_of = |row: &&Value| {
        let is_ours = row["variant"].is_null() || row["variant"] == "ours";
        is_ours && row["bag_interval_s"].as_f64() == Some(interval_s)
    };
    let chosen: Vec<Value> = rows.0.iter().filter(is_of).cloned().collect();
    let rows = Rows(&chosen);
    rows.0.first()?;
    let names = [("none", "no failures"), ("queue_lost", "failures, queue lost"), ("durable", "failures, queue kept")];
    let (none, queue_lost, durable) = (Value::from("none"), Value::from("queue_lost"), Value::from("durable"));
    let mut all: Vec<Series> = [&none, &queue_lost, &durable]
        .into_iter()
        .zip(names)
        .map(|(failures, (_, name))| {
            series(&format!("idlewood, {name}"), rows.with("failures", failures), "nodes", OURS)
        })
        .collect();
    for (name, column) in [("FCFS", "ratio_fcfs_mincent"), ("offline bound", "ratio_offline_mincent")] {
        all.push(series(&format!("{name}, no failures"), rows.with("failures", &none), "nodes", column));
    }
    all.retain(|series| !series.points.is_empty());
    if interval_s == 10.0 {
        all.push(published("paper, no failures: at most", &FAIRNESS_PUBLISHED));
        all.push(published("paper, FCFS: about", &FCFS_PUBLISHED));
        let mut authors = published("authors' later code, no failures", &AUTHORS_CODE);
        authors.is_line = true;
        all.push(authors);
    }
    let figure = Figure {
        title: format!("Maximum stretch relative to MinCent, a bag every {interval_s} s"),
        caption:
            "Mean over seeds of the quotient of maximum stretches, with 95 % confidence intervals; MinCent that knows \
                  submitters is 1 for ours, MinCent for the others. \
                  The paper states the values at 1,000 machines (§7.2, Fig. 4a); those of the authors' later code were \
                  measured, at 50 and at 1,000 machines."
                .to_owned(),
        x: axis("machines", Scale::Log),
        y: axis("maximum stretch / MinCent's", Scale::Log),
        series: all,
    };
    Some((format!("fairness_{interval_s}s"), figure))
}

fn updates(rows: &Rows<'_>) -> Figure {
    let distribution = |row: &Value| {
        let quantile = |share: &f64| Some(Point { x: row[quantile_name(*share)].as_f64()?, y: *share, interval: None });
        let mut points: Vec<Point> = UPDATE_SHARES.iter().filter_map(quantile).collect();
        points.extend(row["update_time_max_s"].as_f64().map(|x| Point { x, y: 1.0, interval: None }));
        Series { name: format!("{} machines", row["nodes"]), points, is_line: true, is_published: false }
    };
    let mut all: Vec<Series> = rows.0.iter().map(distribution).collect();
    all.push(published("paper, 1,000 machines: largest", &[(UPDATE_TIME_PUBLISHED_S, 1.0)]));
    Figure {
        title: "Time for a leaf's change to reach the root".to_owned(),
        caption:
            "Shares of the changes while bags arrive: each point is the mean over seeds of each seed's own quantile, the \
                  last alone the largest of all seeds. The paper states the largest at 1,000 machines and 10 kB/s (§7.2, Fig. 4b)."
                .to_owned(),
        x: axis("time, s", Scale::Linear),
        y: axis("share of changes", Scale::Linear),
        series: all,
    }
}

/// Name of the column with that quantile.
pub(super) fn quantile_name(share: f64) -> String {
    format!("update_time_p{:02.0}_s", share * 100.0)
}

fn table1_time(rows: &Rows<'_>) -> (String, Figure) {
    let theirs: Vec<(f64, f64)> = TABLE1_PUBLISHED.iter().map(|row| (row.0, row.1)).collect();
    let mut all = by_size("idlewood", rows, "update_limit_bytes_s", "update_time_max_s");
    all.push(published("paper", &theirs));
    let figure = Figure {
        title: "Largest update time by update limit".to_owned(),
        caption: "Largest time for a leaf's change to reach the root, against the limit of reports. Ours is for both children of \
                  a router together, two fifths of it for each; the paper's is for each child. Its values are those of Table 1, for 1,000 machines."
            .to_owned(),
        x: axis("update limit, B/s", Scale::Log),
        y: axis("largest update time, s", Scale::Log),
        series: all,
    };
    ("table1_time".to_owned(), figure)
}

fn table1_links(rows: &Rows<'_>) -> (String, Figure) {
    let means: Vec<(f64, f64)> = TABLE1_PUBLISHED.iter().map(|row| (row.0, row.2)).collect();
    let peaks: Vec<(f64, f64)> = TABLE1_PUBLISHED.iter().map(|row| (row.0, row.3)).collect();
    let mut all = by_size("idlewood, mean", rows, "update_limit_bytes_s", "link_mean_percent");
    all.extend(by_size("idlewood, peak", rows, "update_limit_bytes_s", "link_peak_percent"));
    all.extend([published("paper, mean", &means), published("paper, peak", &peaks)]);
    let figure = Figure {
        title: "Use of links of 1 Mb/s by update limit".to_owned(),
        caption: "Mean over machines and time, and the busiest second of the busiest machine. Our limit is for both children of a \
                  router together, two fifths of it for each, the paper's for each child. Its values are those of Table 1, \
                  for 1,000 machines."
            .to_owned(),
        x: axis("update limit, B/s", Scale::Log),
        y: axis("use of links, %", Scale::Log),
        series: all,
    };
    ("table1_links".to_owned(), figure)
}

fn bound(rows: &Rows<'_>) -> Figure {
    let mut all = Vec::new();
    for nodes in rows.values("nodes") {
        for rule in rows.values("rule") {
            let name = format!("{} rule, {nodes} machines", rule.as_str().unwrap_or_default().replace('_', " "));
            let chosen = rows.with("nodes", nodes).filter(|row| row["rule"] == *rule);
            all.push(series(&name, chosen, "root_share", OURS));
        }
    }
    Figure {
        title: "Climbing: what fewer decisions at the root cost".to_owned(),
        caption:
            "Each point is a bound B of a climbing rule; the larger, the more is decided below the root. Ratios are \
                  to MinCent's maximum stretch."
                .to_owned(),
        x: axis("share of requests decided at the root", Scale::Linear),
        y: axis("maximum stretch / MinCent's", Scale::Linear),
        series: all,
    }
}

fn scale_stretch(rows: &Rows<'_>) -> (String, Figure) {
    let figure = Figure {
        title: "Maximum stretch relative to the offline bound".to_owned(),
        caption: "Twenty bags of about two tasks for each machine. Mean over seeds of the quotient of maximum stretches, with 95 % \
                  confidence intervals where there are several. No schedule is below 1. The paper stopped at 1,000 \
                  machines and has no such figure."
            .to_owned(),
        x: axis("machines", Scale::Log),
        y: axis("maximum stretch / offline bound", Scale::Linear),
        series: vec![
            series("idlewood", rows.0.iter(), "nodes", "ratio_offline"),
            series("MinCent", rows.0.iter(), "nodes", "ratio_mincent_offline"),
            series("FCFS", rows.0.iter(), "nodes", "ratio_fcfs_offline"),
        ],
    };
    ("scale_stretch".to_owned(), figure)
}

fn scale_traffic(rows: &Rows<'_>) -> (String, Figure) {
    let figure = Figure {
        title: "Traffic of a machine".to_owned(),
        caption: "All messages sent, on average over machines and time.".to_owned(),
        x: axis("machines", Scale::Log),
        y: axis("B/s", Scale::Linear),
        series: vec![series("idlewood", rows.0.iter(), "nodes", "bytes_per_node_s")],
    };
    ("scale_traffic".to_owned(), figure)
}

fn desktops(rows: &Rows<'_>) -> Vec<(String, Figure)> {
    let mut figures = Vec::new();
    for machines in rows.values("machines") {
        for sizes in rows.values("sizes") {
            let chosen: Vec<Value> =
                rows.with("machines", machines).filter(|row| row["sizes"] == *sizes).cloned().collect();
            if chosen.is_empty() {
                continue;
            }
            let (machines, sizes) = (machines.as_str().unwrap_or_default(), sizes.as_str().unwrap_or_default());
            figures.push((format!("desktops_{machines}_{sizes}"), desktops_of(&Rows(&chosen), machines, sizes)));
        }
    }
    figures
}

fn desktops_of(rows: &Rows<'_>, machines: &str, sizes: &str) -> Figure {
    let variants: Vec<String> =
        rows.values("variant").into_iter().filter_map(|variant| variant.as_str().map(str::to_owned)).collect();
    let mut all = Vec::new();
    for nodes in rows.values("nodes") {
        for load in rows.values("load") {
            let chosen = rows.with("nodes", nodes).filter(|row| row["load"] == *load);
            let points = chosen.filter_map(|row| {
                let x = variants.iter().position(|variant| row["variant"] == variant.as_str())? as f64;
                Some(Point { x, ..point(row, "nodes", OURS)? })
            });
            let points: Vec<Point> = points.collect();
            let name = format!("{nodes} machines, load {load}");
            all.push(Series { name, points, is_line: false, is_published: false });
        }
    }
    let machines = match machines {
        "stay" => "machines stay",
        "desktop" => "machines come and go",
        "desktop_attended" => "all but submitters come and go",
        other => other,
    };
    let sizes = match sizes {
        "log_uniform" => "log-uniform bags",
        "empirical" => "bags of a grid",
        other => other,
    };
    Figure {
        title: format!("Maximum stretch against dedicated time, {machines}, {sizes}"),
        caption:
            "Geometric means over paired seeds of the quotient with that of MinCent that knows submitters, with 95 % \
                  confidence intervals; below 1 is better. The paper has no such load."
                .to_owned(),
        x: axis("scheduler", Scale::Categories(variants)),
        y: axis("maximum stretch / MinCent's", Scale::Log),
        series: all,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_line_goes_from_one_size_to_another() {
        let limits = [2_500, 40_000];
        let row = |nodes: u32, limit: u32| {
            json!({
                "nodes": nodes, "update_limit_bytes_s": limit, "update_time_max_s": 1.0, "link_mean_percent": 2.0,
                "link_peak_percent": 3.0,
            })
        };
        let rows: Vec<Value> = [5, 9].into_iter().flat_map(|nodes| limits.map(|limit| row(nodes, limit))).collect();
        for (name, figure) in figures(Experiment::Table1, &json!({ "rows": rows })) {
            let ours: Vec<&Series> = figure.series.iter().filter(|series| !series.is_published).collect();
            assert!(ours.len() == 2 || ours.len() == 4, "{name}: {ours:?}");
            for series in ours {
                let xs: Vec<f64> = series.points.iter().map(|point| point.x).collect();
                assert_eq!(xs, limits.map(f64::from), "{name}: {}", series.name);
                assert!(series.name.ends_with("5 machines") || series.name.ends_with("9 machines"), "{}", series.name);
            }
        }
    }
}
