//! Figures as SVG: points and lines with confidence intervals, the papers' values beside ours.
//!
//! Drawn by plotters, of which only the SVG backend is built: it needs no system fonts, and the same figure is the same
//! text everywhere.

use plotters::chart::ChartBuilder;
use plotters::coord::combinators::{BindKeyPoints, IntoLogRange};
use plotters::coord::ranged1d::{AsRangedCoord, IntoSegmentedCoord, Ranged, SegmentValue, ValueFormatter};
use plotters::element::{Circle, Cross, ErrorBar, PathElement, Text};
use plotters::prelude::{IntoDrawingArea, SVGBackend};
use plotters::series::LineSeries;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{BLACK, Color, IntoTextStyle, RGBColor, WHITE};

/// Width and height in pixels, of title and plot alone.
const SIZE: (u32, u32) = (860, 480);
/// Margin on all sides.
const MARGIN: i32 = 12;
/// Height of a row of the legend, of its text, and the room for its sign and a letter.
const LEGEND_ROW: i32 = 20;
const LEGEND_FONT: i32 = 13;
const LEGEND_SIGN: i32 = 28;
const LEGEND_LETTER: i32 = 8;
/// Distinguishable by colour-blind people, too (Okabe and Ito 2008).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(96, 96, 96),
];

/// For published values, from dark to light.
const PUBLISHED: [RGBColor; 3] = [RGBColor(0, 0, 0), RGBColor(120, 120, 120), RGBColor(150, 75, 0)];

/// Values outside of these are not ours, and plotters would search for the ticks of an endless axis.
const SMALLEST: f64 = 1e-30;
const LARGEST: f64 = 1e30;

/// The scale of an axis.
#[derive(Clone, Debug, PartialEq)]
pub enum Scale {
    /// Begins at 0.
    Linear,
    /// All values must be above 0.
    Log,
    /// Values are indices of these, from 0.
    Categories(Vec<String>),
}

/// One axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Quantity and unit.
    pub label: String,
    /// How it runs.
    pub scale: Scale,
}

/// A value, and its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// To the right.
    pub x: f64,
    /// Upwards.
    pub y: f64,
    /// Low and high end of the interval.
    pub interval: Option<[f64; 2]>,
}

/// Points that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// In the order of the line.
    pub points: Vec<Point>,
    /// Whether a line joins them.
    pub is_line: bool,
    /// Whether they are a paper's: crosses.
    pub is_published: bool,
}

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Above it.
    pub title: String,
    /// Shown below it in a page: an explanation, and the source of published values.
    pub caption: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// What is drawn.
    pub series: Vec<Series>,
}

impl Figure {
    /// The figure as a document of its own; without points a frame that says so.
    ///
    /// # Panics
    /// Never: text takes every write.
    pub fn to_svg(&self) -> String {
        let usable = |scale: &Scale, value: f64| {
            let is_between = (SMALLEST..LARGEST).contains(&value.abs());
            (is_between || value == 0.0) && (*scale != Scale::Log || value > 0.0)
        };
        let mut figure = self.clone();
        for series in &mut figure.series {
            series.points.retain(|point| usable(&self.x.scale, point.x) && usable(&self.y.scale, point.y));
            for point in &mut series.points {
                let fits = |interval: &[f64; 2]| interval.iter().all(|end| usable(&self.y.scale, *end));
                point.interval = point.interval.filter(fits);
            }
        }
        if figure.series.iter().all(|series| series.points.is_empty()) {
            figure.title += ": nothing to show yet";
        }
        figure.draw_any()
    }

    fn draw_any(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x_range = range(&self.x.scale, points().map(|point| point.x));
        let ys = points().flat_map(|point| point.interval.into_iter().flatten().chain([point.y]));
        let y_range = range(&self.y.scale, ys);
        let log = |range: std::ops::Range<f64>| range.clone().log_scale().with_key_points(ticks(range));
        let number = |value: &f64| short(*value);
        match (&self.x.scale, self.y.scale == Scale::Log) {
            (Scale::Linear, false) => self.draw(x_range, y_range, |x| x, &number),
            (Scale::Linear, true) => self.draw(x_range, log(y_range), |x| x, &number),
            (Scale::Log, false) => self.draw(log(x_range), y_range, |x| x, &number),
            (Scale::Log, true) => self.draw(log(x_range), log(y_range), |x| x, &number),
            (Scale::Categories(names), is_y_log) => {
                let range = (0..names.len() as i32 - 1).into_segmented();
                let name = |value: &SegmentValue<i32>| match value {
                    SegmentValue::CenterOf(number) => names.get(*number as usize).cloned().unwrap_or_default(),
                    SegmentValue::Exact(_) | SegmentValue::Last => String::new(),
                };
                let place = |x: f64| SegmentValue::CenterOf(x as i32);
                if is_y_log {
                    self.draw(range, log(y_range), place, &name)
                } else {
                    self.draw(range, y_range, place, &name)
                }
            }
        }
    }

    /// Number of legend entries in a row, and of rows.
    fn legend(&self) -> (usize, usize) {
        let letters = self.series.iter().map(|series| series.name.chars().count()).max().unwrap_or(0) as i32;
        let columns = ((SIZE.0 as i32 - 2 * MARGIN) / (LEGEND_SIGN + LEGEND_LETTER * (letters + 2))).max(1) as usize;
        (columns, self.series.len().div_ceil(columns))
    }

    fn draw<X, Y, V>(&self, x: X, y: Y, place: impl Fn(f64) -> V, name: &dyn Fn(&V) -> String) -> String
    where
        X: AsRangedCoord<Value = V>,
        X::CoordDescType: Ranged<ValueType = V> + ValueFormatter<V>,
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
        V: Clone + 'static,
    {
        const DRAWN: &str = "text takes every write";
        let mut text = String::new();
        {
            let (columns, rows) = self.legend();
            let legend_height = rows as i32 * LEGEND_ROW;
            let area = SVGBackend::with_string(&mut text, (SIZE.0, SIZE.1 + legend_height as u32)).into_drawing_area();
            area.fill(&WHITE).expect(DRAWN);
            let inner = area.margin(MARGIN, MARGIN, MARGIN, MARGIN);
            let inner = inner.titled(&self.title, ("sans-serif", 18)).expect(DRAWN);
            // Outside of all data.
            let (legend, plot) = inner.split_vertically(legend_height);
            let mut chart = ChartBuilder::on(&plot)
                .margin_top(MARGIN)
                .x_label_area_size(46)
                .y_label_area_size(72)
                .build_cartesian_2d(x, y)
                .expect(DRAWN);
            let categories = if let Scale::Categories(names) = &self.x.scale { names.len() } else { 10 };
            chart
                .configure_mesh()
                .light_line_style(WHITE)
                .bold_line_style(BLACK.mix(0.12))
                .x_desc(&self.x.label)
                .y_desc(&self.y.label)
                .x_labels(categories)
                .x_label_formatter(name)
                .y_label_formatter(&|value| short(*value))
                .label_style(("sans-serif", 13))
                .draw()
                .expect(DRAWN);
            let mut published = PUBLISHED.iter().cycle();
            for (number, series) in self.series.iter().enumerate() {
                let own = &COLOURS[number % COLOURS.len()];
                let colour = *if series.is_published { published.next().unwrap_or(own) } else { own };
                let at = |point: &Point| (place(point.x), point.y);
                if series.is_line {
                    chart
                        .draw_series(LineSeries::new(series.points.iter().map(at), colour.stroke_width(2)))
                        .expect(DRAWN);
                }
                let intervals = series.points.iter().filter_map(|point| {
                    let [low, high] = point.interval?;
                    Some(ErrorBar::new_vertical(place(point.x), low, point.y, high, colour.stroke_width(1), 8))
                });
                chart.draw_series(intervals).expect(DRAWN);
                let left = (number % columns) as i32 * (SIZE.0 as i32 - 2 * MARGIN) / columns as i32;
                let middle = (number / columns) as i32 * LEGEND_ROW + LEGEND_ROW / 2;
                if series.is_published {
                    let stroke = colour.stroke_width(2);
                    let crosses = series.points.iter().map(|point| Cross::new(at(point), 6, stroke));
                    chart.draw_series(crosses).expect(DRAWN);
                    legend.draw(&Cross::new((left + 10, middle), 5, stroke)).expect(DRAWN);
                } else {
                    let dots = series.points.iter().map(|point| Circle::new(at(point), 4, colour.filled()));
                    chart.draw_series(dots).expect(DRAWN);
                    let line = vec![(left, middle), (left + 20, middle)];
                    legend.draw(&PathElement::new(line, colour.stroke_width(3))).expect(DRAWN);
                }
                let style =
                    ("sans-serif", LEGEND_FONT).into_text_style(&legend).pos(Pos::new(HPos::Left, VPos::Center));
                let name = Text::new(series.name.as_str(), (left + LEGEND_SIGN, middle), style);
                legend.draw(&name).expect(DRAWN);
            }
            area.present().expect(DRAWN);
        }
        text
    }
}

/// The range of an axis: with some room on both sides.
fn range(scale: &Scale, values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values {
        low = low.min(value);
        high = high.max(value);
    }
    if low > high {
        return 0.5..2.0;
    }
    match scale {
        Scale::Log => low / 1.3..high * 1.3,
        Scale::Linear | Scale::Categories(_) => low.min(0.0)..if high > 0.0 { high * 1.12 } else { 1.0 },
    }
}

/// Ticks of a logarithmic axis: powers of ten, those with 2 and 5, or even steps if it is short.
fn ticks(range: std::ops::Range<f64>) -> Vec<f64> {
    const FEW: f64 = 10.0;
    let std::ops::Range { start, end } = range;
    if end / start < FEW {
        let rough = (end - start) / FEW;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|digit| digit * power).find(|step| *step >= rough);
        let step = step.unwrap_or(power * 10.0);
        return ((start / step).ceil() as i64..=(end / step).floor() as i64).map(|count| count as f64 * step).collect();
    }
    let powers = start.log10().floor() as i32..=end.log10().floor() as i32;
    let decades = (end / start).log10();
    let digits: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let stride = (decades / FEW).ceil() as usize;
    let all = powers.step_by(stride).flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)));
    all.filter(|tick| (start..=end).contains(tick)).collect()
}

/// A number with three digits, which distinguish it from its neighbours on an axis, without trailing zeros.
fn short(value: f64) -> String {
    let trimmed = |text: &str| text.trim_end_matches('0').trim_end_matches('.').to_owned();
    let size = value.abs();
    // Of the rounded number.
    let power = format!("{size:.2e}").split_once('e').and_then(|(_, power)| power.parse::<i32>().ok()).unwrap_or(0);
    if size == 0.0 {
        "0".to_owned()
    } else if !(-3..6).contains(&power) {
        let text = format!("{value:.2e}");
        text.split_once('e').map_or(text.clone(), |(digits, power)| format!("{}e{power}", trimmed(digits)))
    } else if power >= 2 {
        format!("{value:.0}")
    } else {
        trimmed(&format!("{value:.*}", (2 - power) as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(x: f64, y: f64) -> Point {
        Point { x, y, interval: Some([y * 0.9, y * 1.1]) }
    }

    fn figure(x: Scale, y: Scale, points: Vec<Point>) -> Figure {
        let axis = |scale| Axis { label: "length, m".to_owned(), scale };
        let series = |name: &str, is_published| Series {
            name: name.to_owned(),
            points: points.clone(),
            is_line: true,
            is_published,
        };
        let series = vec![series("ours", false), series("theirs", true)];
        Figure { title: "a < b".to_owned(), caption: String::new(), x: axis(x), y: axis(y), series }
    }

    #[test]
    fn every_scale_is_drawn_the_same_each_time() {
        for x in [Scale::Linear, Scale::Log, Scale::Categories(["one", "two"].map(str::to_owned).to_vec())] {
            for y in [Scale::Linear, Scale::Log] {
                let figure = figure(x.clone(), y, vec![point(1.0, 3.0), point(0.0, 2.0), point(1.0, f64::NAN)]);
                let svg = figure.to_svg();
                assert_eq!(svg, figure.to_svg());
                for part in ["ours", "theirs", "length, m", "a &lt; b", "<circle"] {
                    assert!(svg.contains(part), "{part} is missing: {svg}");
                }
                // Values outside of an axis are left out. Our dot, and one in the middle of each interval.
                let shown = if x == Scale::Log { 1 } else { 2 };
                assert_eq!(svg.matches("<circle").count(), 3 * shown, "{svg}");
                if let Scale::Categories(_) = x {
                    assert!(svg.contains("one") && svg.contains("two"), "{svg}");
                }
            }
        }
        assert!(figure(Scale::Log, Scale::Log, Vec::new()).to_svg().contains("nothing to show yet"));
    }

    #[test]
    fn values_outside_every_axis_are_left_out() {
        for scale in [Scale::Linear, Scale::Log] {
            let figure =
                |y: &[f64]| figure(Scale::Log, scale.clone(), y.iter().map(|y| point(1.0, *y)).collect()).to_svg();
            for y in [1e308, 1e-308, f64::MIN_POSITIVE / 2.0, f64::INFINITY, f64::NAN, -1e308] {
                assert_eq!(figure(&[2.0, y]), figure(&[2.0]), "{y}");
                assert!(figure(&[y]).contains("nothing to show yet"), "{y}");
            }
            // The extreme values that are drawn: three circles for each point, as above.
            for y in [&[2e-30][..], &[0.9e30], &[2e-30, 0.9e30]] {
                assert_eq!(figure(y).matches("<circle").count(), 3 * y.len());
            }
        }
    }

    #[test]
    fn numbers_of_axes() {
        assert_eq!([0.0, 0.25, 3.0, 12.34, 1234.5, 2e-7].map(short), ["0", "0.25", "3", "12.3", "1234", "2e-7"]);
        let small = [0.001, 0.000_999_999_9, 0.002, 0.1, -0.05, 2.5e-7, 10.0, 100.0, 99.99, 1e6];
        assert_eq!(small.map(short), ["0.001", "0.001", "0.002", "0.1", "-0.05", "2.5e-7", "10", "100", "100", "1e6"]);
    }

    #[test]
    fn a_logarithmic_axis_has_ticks_wherever_it_is() {
        let of = |low: f64, high: f64| ticks(low / 1.3..high * 1.3).into_iter().map(short).collect::<Vec<_>>();
        assert_eq!(of(2.0, 7.0), ["2", "3", "4", "5", "6", "7", "8", "9"]);
        assert_eq!(of(50.0, 1000.0), ["50", "100", "200", "500", "1000"]);
        assert_eq!(of(1000.0, 1000.0), ["800", "900", "1000", "1100", "1200", "1300"]);
        assert_eq!(of(0.001, 0.1), ["0.001", "0.002", "0.005", "0.01", "0.02", "0.05", "0.1"]);
        for low in [1e-30, 3e-7, 0.98, 150.0, 7.7e11, 1e29] {
            for factor in [1.0, 1.01, 2.0, 5.9, 6.0, 60.0, 1e5, 1e59] {
                let ticks = of(low, (low * factor).min(1e30));
                assert!((2..=14).contains(&ticks.len()), "{low} {factor}: {ticks:?}");
                assert!(ticks.windows(2).all(|pair| pair[0] != pair[1]), "{low} {factor}: {ticks:?}");
            }
        }
    }

    #[test]
    fn the_legend_is_beside_no_data() {
        let of = |names: &[&str]| {
            let mut figure = figure(Scale::Log, Scale::Log, vec![point(1.0, 3.0), point(20.0, 5.0)]);
            let series = figure.series[0].clone();
            figure.series = names.iter().map(|name| Series { name: (*name).to_owned(), ..series.clone() }).collect();
            figure.to_svg()
        };
        // Every letter of it is above every dot, in as many rows as it takes.
        let long = "a series with a name that takes most of the width of a figure, in all";
        for names in [&["ours"; 1][..], &["ours"; 9], &["ours", long], &[long; 4]] {
            let svg = of(names);
            let ys = |start: &str, name: &str, of: &dyn Fn(&str) -> bool| -> Vec<f64> {
                let elements = svg.split(start).skip(1).filter(|element| of(element));
                elements
                    .map(|element| element.split(name).nth(1).unwrap().split('"').nth(1).unwrap().parse().unwrap())
                    .collect()
            };
            let names_y = ys("<text", " y=", &|element| names.iter().any(|name| element.contains(name)));
            let dots_y = ys("<circle", " cy=", &|_| true);
            assert_eq!((names_y.len(), dots_y.len()), (names.len(), 4 * names.len()), "{svg}");
            let lowest = names_y.into_iter().fold(0.0, f64::max);
            assert!(dots_y.into_iter().all(|y| y > lowest + 4.0), "{svg}");
        }
    }
}
