//! `simnet report`: one self-contained HTML page of experiments' results.
//!
//! Figures are drawn anew from the summaries and embedded in the page; nothing is loaded from elsewhere.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::experiment::{Experiment, LABELS, figures, replace};

/// Columns of the tables, in their order, if a row has them; all others are in the summaries.
const QUANTITIES: [&str; 46] = [
    "user_stretch_by_honest",
    "user_small_stretch_by_honest",
    "user_large_stretch_by_honest",
    "others_stretch_by_honest",
    "others_max_stretch_by_honest",
    "ratio_mincent",
    "ratio_mincent_plus",
    "ratio_mincent_submitters",
    "ratio_mincent_plus_submitters",
    "ratio_fcfs",
    "ratio_speed_split",
    "ratio_offline",
    "share_of_the_way",
    "ratio_fcfs_mincent",
    "ratio_offline_mincent",
    "ratio_mincent_offline",
    "ratio_fcfs_offline",
    "ended_ratio_mincent",
    "mean_ratio_mincent",
    "application_ratio_mincent",
    "effective_ratio_mincent",
    "dedicated_ratio_mincent",
    "root_share",
    "unfinished_bags",
    "lost_tasks",
    "open_tasks",
    "duplicate_tasks",
    "crashes",
    "preemptions",
    "update_time_p50_s",
    "update_time_p90_s",
    "update_time_p99_s",
    "update_time_max_s",
    "link_mean_percent",
    "link_peak_percent",
    "tree_peak_percent",
    "link_mean_percent_depth_00",
    "link_peak_percent_depth_00",
    "messages_per_node_s",
    "bytes_per_node_s",
    "events",
    "sim_s",
    "cpu_s",
    "cpu_s_per_machine_hour",
    "peak_rss_bytes",
    "rss_bytes_per_node",
];

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}\
    h2{margin-top:3rem;border-top:1px solid #ccc;padding-top:1rem}figure{margin:1.5rem 0}svg{max-width:100%;height:auto}\
    figcaption{color:#444;font-size:.9rem}code,pre{font-family:ui-monospace,monospace;font-size:.9rem}\
    pre{background:#f4f4f4;padding:.6rem;overflow-x:auto}.wide{overflow-x:auto}\
    table{border-collapse:collapse;font-size:.8rem}th,td{padding:.2rem .6rem;text-align:right;white-space:nowrap;\
    border-bottom:1px solid #ddd}small{color:#666}.open{color:#a00}";

/// The result of writing a page.
#[derive(Clone, Debug)]
pub struct Written {
    /// Its path.
    pub path: PathBuf,
    /// Summaries that were left out, which the page names, too: a sentence for each.
    pub left_out: Vec<String>,
}

/// Writes `report.html` into a directory from the summaries there and in its subdirectories. Leaves unreadable
/// summaries out.
///
/// # Errors
/// A sentence that says that there is no summary, or what could not be read or written.
pub fn write(directory: &Path) -> Result<Written, String> {
    let (summaries, left_out) = summaries(directory)?;
    if summaries.is_empty() && left_out.is_empty() {
        let names: Vec<String> = kinds().map(|(_, name, _)| format!("{name}.json")).collect();
        let names = names.join(", ");
        let directory = directory.display();
        return Err(format!("{directory} has no summary ({names}); simnet reproduce NAME --out {directory} makes one"));
    }
    let path = directory.join("report.html");
    replace(&path, &page(&summaries, &left_out))?;
    Ok(Written { path, left_out })
}

/// Kinds of summaries: the experiment's name, that of the file, and the experiment, except for the one on overlays
/// alone.
fn kinds() -> impl Iterator<Item = (&'static str, &'static str, Option<Experiment>)> {
    let papers = Experiment::ALL.into_iter().map(|experiment| (experiment.name(), experiment.name(), Some(experiment)));
    papers.chain([("overlay", "summary", None)])
}

/// The summary of an experiment, and its path.
struct Found {
    name: &'static str,
    experiment: Option<Experiment>,
    path: PathBuf,
    summary: Value,
}

/// Summaries in the order of the experiments, and the flaws of others. Many programs write a `summary.json`: only one
/// that says that it is of overlays is used, and others are ignored.
fn summaries(directory: &Path) -> Result<(Vec<Found>, Vec<String>), String> {
    let unreadable = |path: &Path, error: &dyn std::fmt::Display| format!("{} cannot be read: {error}", path.display());
    let mut directories = vec![directory.to_owned()];
    for entry in std::fs::read_dir(directory).map_err(|error| unreadable(directory, &error))? {
        let path = entry.map_err(|error| unreadable(directory, &error))?.path();
        if path.is_dir() {
            directories.push(path);
        }
    }
    directories.sort();
    let (mut found, mut left_out) = (Vec::new(), Vec::new());
    for (name, file, experiment) in kinds() {
        for directory in &directories {
            let path = directory.join(format!("{file}.json"));
            // Another program's file of that name is ignored.
            let is_anyones = experiment.is_none();
            if path.try_exists().is_ok_and(|exists| !exists) || is_anyones && path.is_dir() {
                continue;
            }
            let text = match std::fs::read(&path) {
                Ok(text) => text,
                Err(error) => {
                    left_out.push(unreadable(&path, &error));
                    continue;
                }
            };
            match serde_json::from_slice::<Value>(&text) {
                Ok(summary) if is_anyones && summary["experiment"] != name => {}
                Err(_) if is_anyones => {}
                Ok(summary) if is_anyones || has_rows(&summary) => {
                    found.push(Found { name, experiment, path, summary });
                }
                Ok(_) => left_out.push(unreadable(&path, &"it has no rows, as a summary has")),
                Err(error) => left_out.push(unreadable(&path, &error)),
            }
        }
    }
    Ok((found, left_out))
}

/// Whether it has rows, perhaps none yet, as the summaries of all experiments except the one on overlays.
fn has_rows(summary: &Value) -> bool {
    summary["rows"].as_array().is_some_and(|rows| rows.iter().all(Value::is_object))
}

fn page(summaries: &[Found], left_out: &[String]) -> String {
    let mut html = String::new();
    let mut add = |text: std::fmt::Arguments<'_>| html.write_fmt(text).expect("text takes every write");
    add(format_args!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>idlewood: experiments</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body>\n\
         <h1>idlewood: experiments</h1>\n<p>The simulator drives the very peers that ship. Centralised schedulers with \
         perfect information and the offline bound get the same machines, bags and failures.</p>\n"
    ));
    for sentence in left_out {
        add(format_args!("<p class=\"open\">Left out: {}.</p>\n", escape(sentence)));
    }
    for Found { name, experiment, path, summary } in summaries {
        let text = |field: &str| escape(summary[field].as_str().unwrap_or_default());
        let place = escape(&path.display().to_string());
        let (command, commit) = (text("command"), text("commit"));
        let (seed, seeds) = (summary["seed"].as_u64().unwrap_or(0), summary["seeds"].as_u64().unwrap_or(0));
        let last = seed.saturating_add(seeds.saturating_sub(1));
        // Older programs wrote neither.
        let command = if command.is_empty() { command } else { format!("<pre>{command}</pre>\n") };
        let commit = if commit.is_empty() { commit } else { format!("commit {commit}, ") };
        add(format_args!("<section id=\"{name}\">\n<h2>{name}</h2>\n{command}"));
        add(format_args!("<p>Seeds {seed} to {last}, {commit}from <code>{place}</code>.</p>\n"));
        if summary["complete"] != Value::Bool(true) {
            let why = experiment.map_or("some jobs are missing", |_| "rows tell how many seeds they have");
            add(format_args!("<p class=\"open\">Not complete: {why}.</p>\n"));
        }
        for (_, figure) in experiment.map(|experiment| figures(experiment, summary)).into_iter().flatten() {
            let (svg, caption) = (figure.to_svg(), escape(&figure.caption));
            // A document has a declaration, a part of a page has none.
            let svg = svg.find("<svg").map_or("", |start| &svg[start..]);
            add(format_args!("<figure>\n{svg}\n<figcaption>{caption}</figcaption>\n</figure>\n"));
        }
        let table = experiment.map_or_else(|| quantities(summary), |_| rows(summary));
        add(format_args!("{table}</section>\n"));
    }
    add(format_args!("</body></html>\n"));
    html
}

fn rows(summary: &Value) -> String {
    let rows = summary["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let columns = LABELS.into_iter().chain(["seeds"]).chain(QUANTITIES);
    let columns: Vec<&str> = columns.filter(|name| rows.iter().any(|row| !row[*name].is_null())).collect();
    let heading: String = columns.iter().map(|name| format!("<th>{}</th>", name.replace('_', " "))).collect();
    let row = |row: &Value| {
        let cells: String = columns.iter().map(|name| format!("<td>{}</td>", cell(row, name))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let body: String = rows.iter().map(row).collect();
    format!("<div class=\"wide\"><table><thead><tr>{heading}</tr></thead>\n<tbody>{body}</tbody></table></div>\n")
}

/// All numbers of a summary without rows, one below the other; without those not measured.
fn quantities(summary: &Value) -> String {
    let numbers = |of: &Value, words: &str| -> String {
        let fields = of.as_object().into_iter().flatten().filter(|(_, value)| value.is_number());
        let row = |name: &String| {
            let words = escape(&format!("{words}{name}").replace('_', " "));
            format!("<tr><th>{words}</th><td>{}</td></tr>\n", cell(of, name))
        };
        fields.map(|(name, _)| row(name)).collect()
    };
    let mut body = numbers(summary, "");
    // By kind of message, or by place in the tree.
    for (name, of) in summary.as_object().into_iter().flatten() {
        for (kind, values) in of.as_object().into_iter().flatten() {
            body += &numbers(values, &format!("{name}, {kind}: "));
        }
    }
    format!("<div class=\"wide\"><table><tbody>{body}</tbody></table></div>\n")
}

fn cell(row: &Value, name: &str) -> String {
    let number = |value: &Value| {
        let value = value.as_f64()?;
        let digits = if value == 0.0 || value.fract() == 0.0 || value.abs() >= 1000.0 { 0 } else { 3 };
        Some(if value != 0.0 && value.abs() < 1e-3 { format!("{value:.2e}") } else { format!("{value:.digits$}") })
    };
    let interval = &row[format!("{name}_ci95")];
    let interval = number(&interval[0]).zip(number(&interval[1]));
    let interval = interval.map_or(String::new(), |(low, high)| format!(" <small>[{low}, {high}]</small>"));
    match &row[name] {
        Value::Null => String::new(),
        Value::String(text) => escape(text),
        value => number(value).unwrap_or_default() + &interval,
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_summary_cannot_become_markup() {
        let summary = serde_json::json!({
            "command": "<script>alert(1)</script>", "seed": 1, "seeds": 2, "complete": false,
            "rows": [{ "nodes": 5, "failures": "<b>&", "ratio_mincent": 1.25, "ratio_mincent_ci95": [1.2, 1.3] }],
        });
        let experiment = Some(Experiment::Fairness);
        let html =
            page(&[Found { name: "fairness", experiment, path: PathBuf::from("a&b"), summary }], &["<u>".to_owned()]);
        assert!(!["<script", "<b>", "<u>"].iter().any(|markup| html.contains(markup)), "{html}");
        for part in ["&lt;b&gt;&amp;", "1.250 <small>[1.200, 1.300]</small>", "a&amp;b", "Not complete"] {
            assert!(html.contains(part), "{part}");
        }
        let summary = serde_json::json!({ "height": 3, "by_<i>": { "<b>&": { "p50_s": 0.5 } } });
        let html = page(
            &[Found { name: "overlay", experiment: None, path: PathBuf::from("a"), summary }],
            &["<u>".to_owned()],
        );
        assert!(!html.contains("<i>") && !html.contains("<b>"), "{html}");
        for part in ["<th>height</th><td>3</td>", "<th>by &lt;i&gt;, &lt;b&gt;&amp;: p50 s</th><td>0.500</td>"] {
            assert!(html.contains(part), "{part}");
        }
    }

    #[test]
    fn fields_missing_from_older_summaries_leave_no_gap() {
        let summary = serde_json::json!({ "experiment": "overlay", "seed": 1, "seeds": 2, "height": 3 });
        let html = page(
            &[Found { name: "overlay", experiment: None, path: PathBuf::from("a"), summary }],
            &["<u>".to_owned()],
        );
        assert!(html.contains("<h2>overlay</h2>\n<p>Seeds 1 to 2, from <code>a</code>.</p>"), "{html}");
    }
}
