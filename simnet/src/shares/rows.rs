//! Rows of the table: what simulations come to over all seeds.

use serde_json::{Map, Value, json};

use crate::experiment::Values;

/// Columns, in the order of the table. Where a row has none of a column's values its cell is empty.
pub(super) const COLUMNS: [&str; 26] = [
    "nodes",
    "failures",
    "bags",
    "cheat",
    "seeds",
    "throughput_ratio_min",
    "utility_gap_max",
    "settle_s_max",
    "bytes_ratio",
    "finite_ratio",
    "settle_comes_s_max",
    "settle_goes_s_max",
    "settle_half_s_max",
    "tree_half_s_max",
    "bytes_per_machine_s",
    "bytes_per_machine_s_without",
    "wave_bytes_ratio",
    "finite_mean_ratio",
    "finite_open",
    "lost_tasks",
    "throughput_ratio_min_beside",
    "utility_gap_max_beside",
    "bytes_ratio_beside",
    "wasted_work_share_max",
    "cheat_share_ratio",
    "others_share_ratio_min",
];

/// The values of one simulation for each seed, in the same order for all simulations of a row.
pub(super) type Seeds<'a> = Vec<&'a Values>;

fn value(of: &Values, name: &str) -> Option<f64> {
    of.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
}

fn each(of: &Seeds<'_>, name: &str) -> Vec<f64> {
    of.iter().filter_map(|values| value(values, name)).collect()
}

fn ratios(of: &Seeds<'_>, to: &Seeds<'_>, name: &str) -> Vec<f64> {
    of.iter().zip(to).filter_map(|(one, other)| Some(value(one, name)? / value(other, name)?)).collect()
}

fn most(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    values.into_iter().reduce(f64::max)
}

fn least(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    values.into_iter().reduce(f64::min)
}

fn mean(values: Vec<f64>) -> Option<f64> {
    let count = values.len() as f64;
    values.into_iter().reduce(|one, other| one + other).map(|sum| sum / count)
}

/// A quantity of each of so many bags, whatever the seed.
fn of_bags(of: &Seeds<'_>, name: &str, bags: usize) -> Vec<f64> {
    (0..bags).flat_map(|bag| each(of, &format!("{name}_{bag}"))).collect()
}

fn labelled(labels: Value, seeds: usize, cells: Vec<(&str, Option<f64>)>) -> Value {
    let mut row: Map<String, Value> = labels.as_object().cloned().unwrap_or_default();
    row.insert("seeds".to_owned(), json!(seeds));
    for column in COLUMNS {
        if !row.contains_key(column) {
            let cell = cells.iter().find(|(name, _)| *name == column).and_then(|(_, value)| *value);
            row.insert(column.to_owned(), json!(cell));
        }
    }
    Value::Object(row)
}

/// A row of honest submitters, of simulations with bags without an end alone, with finite ones beside them, with finite ones alone, and
/// without any.
pub(super) fn honest(labels: Value, bags: usize, [alone, beside, finite, idle]: [&Seeds<'_>; 4]) -> Value {
    // What repair of the tree takes after half of the machines vanish is not the shares' fault.
    let beyond = alone.iter().filter_map(|of| Some((value(of, "settle_half_s")? - value(of, "tree_half_s")?).max(0.0)));
    let settles = each(alone, "settle_comes_s").into_iter().chain(each(alone, "settle_goes_s")).chain(beyond);
    let wave = alone.iter().zip(idle).filter_map(|(alone, idle)| {
        Some(1.0 + value(alone, "wave_bytes_per_machine_s")? / value(idle, "bytes_per_machine_s")?)
    });
    let cells = vec![
        ("throughput_ratio_min", least(of_bags(alone, "throughput_ratio", bags))),
        ("utility_gap_max", most(each(alone, "utility_gap"))),
        ("settle_s_max", most(settles)),
        ("bytes_ratio", mean(ratios(alone, idle, "bytes_per_machine_s"))),
        ("finite_ratio", most(ratios(beside, finite, "finite_stretch_max"))),
        ("settle_comes_s_max", most(each(alone, "settle_comes_s"))),
        ("settle_goes_s_max", most(each(alone, "settle_goes_s"))),
        ("settle_half_s_max", most(each(alone, "settle_half_s"))),
        ("tree_half_s_max", most(each(alone, "tree_half_s"))),
        ("bytes_per_machine_s", mean(each(alone, "bytes_per_machine_s"))),
        ("bytes_per_machine_s_without", mean(each(idle, "bytes_per_machine_s"))),
        ("wave_bytes_ratio", mean(wave.collect())),
        ("finite_mean_ratio", mean(ratios(beside, finite, "finite_stretch_mean"))),
        ("finite_open", most([beside, finite].iter().flat_map(|of| each(of, "finite_open")))),
        ("lost_tasks", most([alone, beside, finite].iter().flat_map(|of| each(of, "lost_tasks")))),
        ("throughput_ratio_min_beside", least(of_bags(beside, "throughput_ratio", bags))),
        ("utility_gap_max_beside", most(each(beside, "utility_gap"))),
        ("bytes_ratio_beside", mean(ratios(beside, finite, "bytes_per_machine_s"))),
        ("wasted_work_share_max", most(each(alone, "wasted_work_share"))),
    ];
    labelled(labels, alone.len(), cells)
}

/// A row in which bag number `cheat` is announced with false sizes, beside the same with true ones.
pub(super) fn cheat(labels: Value, bags: usize, cheat: usize, of: &Seeds<'_>, honest: &Seeds<'_>) -> Value {
    let shares = |bag: usize| ratios(of, honest, &format!("work_mops_s_{bag}"));
    let others = (0..bags).filter(|bag| *bag != cheat).flat_map(shares);
    let cells = vec![
        ("throughput_ratio_min", least(of_bags(of, "throughput_ratio", bags))),
        ("utility_gap_max", most(each(of, "utility_gap"))),
        ("bytes_per_machine_s", mean(each(of, "bytes_per_machine_s"))),
        ("lost_tasks", most(each(of, "lost_tasks"))),
        // The furthest from 1.
        (
            "cheat_share_ratio",
            shares(cheat).into_iter().max_by(|one, other| (one - 1.0).abs().total_cmp(&(other - 1.0).abs())),
        ),
        ("others_share_ratio_min", least(others)),
    ];
    labelled(labels, of.len(), cells)
}

/// All rows as CSV.
pub(super) fn csv(rows: &[Value]) -> String {
    let cell = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        number => number.to_string(),
    };
    let line = |row: &Value| COLUMNS.map(|column| cell(&row[column])).join(",");
    [COLUMNS.join(",")].into_iter().chain(rows.iter().map(line)).map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_worst_of_all_seeds_and_bags() {
        let of = |values: &[(&str, f64)]| -> Values {
            values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
        };
        let alone = |worst, half| {
            of(&[
                ("throughput_ratio_0", 0.99),
                ("throughput_ratio_1", worst),
                ("settle_comes_s", 1.0),
                ("settle_half_s", half),
                ("tree_half_s", 4.0),
                ("bytes_per_machine_s", 110.0),
            ])
        };
        let (one, other) = (alone(0.98, 3.0), alone(0.97, 6.5));
        let (slow, fast) = (of(&[("finite_stretch_max", 3.0)]), of(&[("finite_stretch_max", 2.0)]));
        let idle = of(&[("bytes_per_machine_s", 100.0)]);
        let seeds = |values| vec![values, values];
        let row = honest(json!({"nodes": 7}), 2, [&vec![&one, &other], &seeds(&slow), &seeds(&fast), &seeds(&idle)]);
        let number = |name: &str| row[name].as_f64();
        assert_eq!(
            ["nodes", "throughput_ratio_min", "settle_s_max", "finite_ratio"].map(number),
            [Some(7.0), Some(0.97), Some(2.5), Some(1.5)]
        );
        assert!((number("bytes_ratio").unwrap() - 1.1).abs() < 1e-12 && row["utility_gap_max"].is_null());
        let text = csv(&[row]);
        assert!(text.starts_with("nodes,failures,bags,cheat,seeds,throughput_ratio_min,utility_gap_max,settle_s_max,"));
        assert_eq!(text.lines().nth(1).unwrap().split(',').count(), COLUMNS.len());
    }

    #[test]
    fn a_cheat_is_compared_with_its_honest_self() {
        let of = |works: [f64; 2]| -> Values {
            works.into_iter().enumerate().map(|(bag, work)| (format!("work_mops_s_{bag}"), work)).collect()
        };
        let (honest, false_one, false_other) = (of([10.0, 10.0]), of([9.0, 10.5]), of([10.0, 9.0]));
        let row = cheat(json!({}), 2, 1, &vec![&false_one, &false_other], &vec![&honest, &honest]);
        assert_eq!([&row["cheat_share_ratio"], &row["others_share_ratio_min"]], [&json!(0.9), &json!(0.9)]);
    }
}
