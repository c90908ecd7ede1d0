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
    /// Whether they are a paper's: black crosses.
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
        let points = || self.series.iter().flat_map(|series| &series.points);
        let usable = |scale: &Scale, value: f64| value.is_finite() && (*scale != Scale::Log || value > 0.0);
        let mut figure = self.clone();
        for series in &mut figure.series {
            series.points.retain(|point| usable(&self.x.scale, point.x) && usable(&self.y.scale, point.y));
            for point in &mut series.points {
                let fits = |interval: &[f64; 2]| interval.iter().all(|end| usable(&self.y.scale, *end));
                point.interval = point.interval.filter(fits);
            }
        }
        if points().next().is_none() {
            figure.title += ": nothing to show yet";
        }
        figure.draw_any()
    }

    fn draw_any(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x_range = range(&self.x.scale, points().map(|point| point.x));
        let ys = points().flat_map(|point| point.interval.into_iter().flatten().chain([point.y]));
        let y_range = range(&self.y.scale, ys);
        let number = |value: &f64| short(*value);
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
                .y_label_formatter(&|value| short(*value))
                .label_style(("sans-serif", 13))
                .draw()
                .expect(DRAWN);
            for (number, series) in self.series.iter().enumerate() {
                let colour = if series.is_published { BLACK } else { COLOURS[number % COLOURS.len()] };
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
                    let crosses = series.points.iter().map(|point| Cross::new(at(point), 6, BLACK.stroke_width(2)));
                    let drawn = chart.draw_series(crosses).expect(DRAWN);
                    drawn.label(&series.name).legend(|(x, y)| Cross::new((x + 10, y), 5, BLACK.stroke_width(2)));
                } else {
                    let dots = series.points.iter().map(|point| Circle::new(at(point), 4, colour.filled()));
                    let drawn = chart.draw_series(dots).expect(DRAWN);
                    let stroke = colour.stroke_width(3);
                    drawn.label(&series.name).legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], stroke));
                }
            }
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperRight)
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
