//! Figures as SVG: points and lines with confidence intervals, the papers' values beside ours.
//!
//! Drawn by plotters, of which only the SVG backend is built: no fonts of the system are needed, and the same figure
//! is the same text everywhere.

use plotters::chart::{ChartBuilder, SeriesLabelPosition};
use plotters::coord::combinators::IntoLogRange;
use plotters::coord::ranged1d::{AsRangedCoord, IntoSegmentedCoord, Ranged, SegmentValue, ValueFormatter};
use plotters::element::{Circle, Cross, ErrorBar, PathElement};
use plotters::prelude::{IntoDrawingArea, SVGBackend};
use plotters::series::LineSeries;
use plotters::style::{BLACK, Color, RGBColor, WHITE};

/// Width and height in pixels.
const SIZE: (u32, u32) = (860, 480);
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

/// Of published values, from dark to light.
const PUBLISHED: [RGBColor; 3] = [RGBColor(0, 0, 0), RGBColor(120, 120, 120), RGBColor(150, 75, 0)];

/// What lies outside of these is no quantity of ours, and there plotters looks for the ticks of an axis without an end.
const SMALLEST: f64 = 1e-30;
const LARGEST: f64 = 1e30;

/// What an axis shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Scale {
    /// Begins at 0.
    Linear,
    /// All values must be above 0.
    Log,
    /// Values are numbers of these, from 0.
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

/// A value, and within what it lies with 95 % confidence.
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
    /// Below it, in a page: what is to be seen, and where the published values are from.
    pub caption: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// What is drawn.
    pub series: Vec<Series>,
}

impl Figure {
    /// The figure as a document of its own; without any point a frame that says so.
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
        let is_x_log = self.x.scale == Scale::Log;
        let number = |value: &f64| if is_x_log { round_only(*value) } else { short(*value) };
        let is_y_log = self.y.scale == Scale::Log;
        match (&self.x.scale, is_y_log) {
            (Scale::Linear, false) => self.draw(x_range, y_range, |x| x, &number),
            (Scale::Linear, true) => self.draw(x_range, y_range.log_scale(), |x| x, &number),
            (Scale::Log, false) => self.draw(x_range.log_scale(), y_range, |x| x, &number),
            (Scale::Log, true) => self.draw(x_range.log_scale(), y_range.log_scale(), |x| x, &number),
            (Scale::Categories(names), is_y_log) => {
                let range = (0..names.len() as i32 - 1).into_segmented();
                let name = |value: &SegmentValue<i32>| match value {
                    SegmentValue::CenterOf(number) => names.get(*number as usize).cloned().unwrap_or_default(),
                    SegmentValue::Exact(_) | SegmentValue::Last => String::new(),
                };
                let place = |x: f64| SegmentValue::CenterOf(x as i32);
                if is_y_log {
                    self.draw(range, y_range.log_scale(), place, &name)
                } else {
                    self.draw(range, y_range, place, &name)
                }
            }
        }
    }

    /// Where the legend hides the fewest points.
    fn emptiest_corner(&self) -> SeriesLabelPosition {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let along = |scale: &Scale, value: f64| if *scale == Scale::Log { value.log10() } else { value };
        let share = |scale: &Scale, values: Vec<f64>| -> Vec<f64> {
            let values: Vec<f64> = values.into_iter().map(|value| along(scale, value)).collect();
            let (low, high) = values
                .iter()
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(*value), high.max(*value)));
            let low = if *scale == Scale::Linear { low.min(0.0) } else { low };
            values.into_iter().map(|value| (value - low) / (high - low).max(1e-9)).collect()
        };
        let xs = share(&self.x.scale, points().map(|point| point.x).collect());
        let ys = share(&self.y.scale, points().map(|point| point.y).collect());
        let hidden = |is_right: bool, is_upper: bool| {
            let within = |(x, y): &(&f64, &f64)| (**x > 0.5) == is_right && (**y > 0.5) == is_upper;
            xs.iter().zip(&ys).filter(within).count()
        };
        let corners = [
            (hidden(true, true), SeriesLabelPosition::UpperRight),
            (hidden(false, true), SeriesLabelPosition::UpperLeft),
            (hidden(true, false), SeriesLabelPosition::LowerRight),
            (hidden(false, false), SeriesLabelPosition::LowerLeft),
        ];
        corners.into_iter().min_by_key(|corner| corner.0).map_or(SeriesLabelPosition::UpperRight, |corner| corner.1)
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
            let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            area.fill(&WHITE).expect(DRAWN);
            let mut chart = ChartBuilder::on(&area)
                .caption(&self.title, ("sans-serif", 18))
                .margin(12)
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
                .y_label_formatter(&|value| if self.y.scale == Scale::Log { round_only(*value) } else { short(*value) })
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
                if series.is_published {
                    let stroke = colour.stroke_width(2);
                    let crosses = series.points.iter().map(|point| Cross::new(at(point), 6, stroke));
                    let drawn = chart.draw_series(crosses).expect(DRAWN);
                    drawn.label(&series.name).legend(move |(x, y)| Cross::new((x + 10, y), 5, stroke));
                } else {
                    let dots = series.points.iter().map(|point| Circle::new(at(point), 4, colour.filled()));
                    let drawn = chart.draw_series(dots).expect(DRAWN);
                    let stroke = colour.stroke_width(3);
                    drawn.label(&series.name).legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], stroke));
                }
            }
            chart
                .configure_series_labels()
                .position(self.emptiest_corner())
                .background_style(WHITE.mix(0.85))
                .border_style(BLACK.mix(0.3))
                .label_font(("sans-serif", 13))
                .draw()
                .expect(DRAWN);
            area.present().expect(DRAWN);
        }
        text
    }
}

/// From where to where an axis goes: with some room on both sides.
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

/// Only the numbers that divide a logarithmic axis well: 1, 2 or 5 and zeros.
fn round_only(value: f64) -> String {
    let power = 10_f64.powf(value.abs().log10().floor() + 1e-9);
    let digit = value / power;
    let is_round = [1.0, 2.0, 5.0, 10.0].iter().any(|round| (digit / round - 1.0_f64).abs() < 1e-6);
    if is_round { short(value) } else { String::new() }
}

/// A number with as many digits as tell it from its neighbours on an axis.
fn short(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        "0".to_owned()
    } else if !(1e-3..1e6).contains(&size) {
        format!("{value:.0e}")
    } else if size >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        let digits = if size >= 10.0 { 1 } else { 2 };
        format!("{value:.digits$}")
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
                // What no axis can show is left out. The dot of ours, and one in the middle of each interval.
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
    fn what_no_axis_reaches_is_left_out() {
        for scale in [Scale::Linear, Scale::Log] {
            let figure =
                |y: &[f64]| figure(Scale::Log, scale.clone(), y.iter().map(|y| point(1.0, *y)).collect()).to_svg();
            for y in [1e308, 1e-308, f64::MIN_POSITIVE / 2.0, f64::INFINITY, f64::NAN, -1e308] {
                assert_eq!(figure(&[2.0, y]), figure(&[2.0]), "{y}");
                assert!(figure(&[y]).contains("nothing to show yet"), "{y}");
            }
            // The ends of what is drawn: three circles for each point, as above.
            for y in [&[2e-30][..], &[0.9e30], &[2e-30, 0.9e30]] {
                assert_eq!(figure(y).matches("<circle").count(), 3 * y.len());
            }
        }
    }

    #[test]
    fn numbers_of_axes() {
        assert_eq!([0.0, 0.25, 3.0, 12.34, 1234.5, 2e-7].map(short), ["0", "0.25", "3", "12.3", "1234", "2e-7"]);
        assert_eq!([1.0, 2.0, 3.0, 500.0, 900.0, 0.1].map(round_only), ["1", "2", "", "500", "", "0.10"]);
    }
}
