//! What a subtree yields at prices, by the bytes/s that reach it: the messages of a pricing wave, and how a machine divides what comes.
//!
//! The yield is concave in the bytes/s. A machine finds a point of its curve for any price of a byte: its processor takes the application that is
//! worth most at that price, and its port sends the pieces of the children's curves that are worth most in a second of its time. The
//! curve is refined where the chord between two such points is furthest below it, so that its error is known.

use super::pricing::Task;

/// Straight pieces of a curve at most (our choice: 33 points are about a kilobyte for four applications).
pub const SEGMENTS_MAX: usize = 32;
/// A chord so near to the curve, relative to the largest yield, counts as the curve.
const NEAR: f64 = 1e-13;

/// Something that a subtree can do.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Bytes/s that must reach it.
    pub bytes_s: f64,
    /// Tasks/s of each application.
    pub rates: Vec<f64>,
}

/// What a machine says upward in a pricing wave: points that its subtree can reach, by ascending bytes/s, and all between two of them. Never empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    points: Vec<Point>,
    error: f64,
}

/// A machine in a pricing wave: what its subtree yields, and how it divides what reaches it.
#[derive(Clone, Debug)]
pub struct Node {
    curve: Curve,
    /// How each point of the curve is reached.
    divisions: Vec<Division>,
}

/// What a machine does with the bytes/s that reach it.
#[derive(Clone, Debug, PartialEq)]
pub struct Division {
    /// Tasks/s of each application on the machine itself.
    pub own: Vec<f64>,
    /// Bytes/s for each child.
    pub children: Vec<f64>,
}

/// A point of the curve with all that belongs to it.
#[derive(Clone, Debug)]
struct Vertex {
    value: f64,
    point: Point,
    division: Division,
}

/// What a machine prices with.
struct Market<'a> {
    speed_mops: f64,
    tasks: &'a [Task],
    prices: &'a [f64],
    children: &'a [(Curve, f64)],
    pieces: Vec<Piece>,
}

/// A straight piece of a child's curve.
struct Piece {
    child: usize,
    bytes_s: f64,
    /// Value of a byte.
    slope: f64,
    /// What the port sends to this child in a second.
    capacity_bytes_s: f64,
}

impl Curve {
    /// Points by ascending bytes/s.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// By how much the yield may be larger than the points say.
    pub fn error(&self) -> f64 {
        self.error
    }

    /// The point with the largest yield.
    pub fn last(&self) -> &Point {
        self.points.last().expect("a curve has a point")
    }

    /// Between which points so many bytes/s lie, and the share of the second one.
    fn place(&self, bytes_s: f64) -> (usize, usize, f64) {
        let last = self.points.len() - 1;
        let after = self.points.partition_point(|point| point.bytes_s < bytes_s).min(last);
        let before = after.saturating_sub(1);
        let [low, high] = [before, after].map(|place| self.points[place].bytes_s);
        let share = if high > low { ((bytes_s - low) / (high - low)).clamp(0.0, 1.0) } else { 1.0 };
        (before, after, share)
    }

    /// Tasks/s that so many bytes/s make; more than the last point needs make no more.
    pub fn rates(&self, bytes_s: f64) -> Vec<f64> {
        let (before, after, share) = self.place(bytes_s);
        mixed(&self.points[before].rates, &self.points[after].rates, share)
    }
}

impl Node {
    /// A machine that does so many Mop/s, with what its children say and the bytes/s that its port sends to each of them if it sends to no
    /// other; infinitely many where that does not count. `prices` are what a task of each application is worth.
    ///
    /// # Panics
    /// When tasks, prices and the children's rates are not of as many applications.
    pub fn new(speed_mops: f64, tasks: &[Task], prices: &[f64], children: &[(Curve, f64)]) -> Self {
        let market = Market::new(speed_mops, tasks, prices, children);
        let (first, last) = (market.best(None), market.best(Some(0.0)));
        let mut vertices = vec![first];
        let mut gaps: Vec<(f64, Vertex)> = Vec::new();
        if last.point.bytes_s > vertices[0].point.bytes_s {
            gaps.push(market.gap(&vertices[0], &last));
            vertices.push(last);
        }
        let near = vertices.last().map_or(0.0, |last| last.value) * NEAR;
        while let Some(widest) = (0..gaps.len()).max_by(|one, other| gaps[*one].0.total_cmp(&gaps[*other].0)) {
            if gaps[widest].0 <= near || vertices.len() > SEGMENTS_MAX {
                break;
            }
            let (_, between) = gaps.remove(widest);
            gaps.insert(widest, market.gap(&vertices[widest], &between));
            gaps.insert(widest + 1, market.gap(&between, &vertices[widest + 1]));
            vertices.insert(widest + 1, between);
        }
        let below: f64 = children.iter().map(|(curve, _)| curve.error).sum();
        let error = below + gaps.iter().map(|(gap, _)| *gap).fold(0.0, f64::max);
        let (points, divisions) = vertices.into_iter().map(|vertex| (vertex.point, vertex.division)).unzip();
        Self { curve: Curve { points, error }, divisions }
    }

    /// What the machine says upward.
    pub fn curve(&self) -> &Curve {
        &self.curve
    }

    /// What the machine does with so many bytes/s: with its subtree, what [`Curve::rates`] says.
    pub fn divide(&self, bytes_s: f64) -> Division {
        let (before, after, share) = self.curve.place(bytes_s);
        let (before, after) = (&self.divisions[before], &self.divisions[after]);
        Division {
            own: mixed(&before.own, &after.own, share),
            children: mixed(&before.children, &after.children, share),
        }
    }
}

impl<'a> Market<'a> {
    fn new(speed_mops: f64, tasks: &'a [Task], prices: &'a [f64], children: &'a [(Curve, f64)]) -> Self {
        let mut pieces = Vec::new();
        for (child, (curve, capacity_bytes_s)) in children.iter().enumerate() {
            for pair in curve.points.windows(2) {
                let bytes_s = pair[1].bytes_s - pair[0].bytes_s;
                let value = dot(prices, &pair[1].rates) - dot(prices, &pair[0].rates);
                if bytes_s > 0.0 && value > 0.0 {
                    let slope = value / bytes_s;
                    pieces.push(Piece { child, bytes_s, slope, capacity_bytes_s: *capacity_bytes_s });
                }
            }
        }
        Self { speed_mops, tasks, prices, children, pieces }
    }

    /// The best that can be done where a byte costs so much; none: without any bytes.
    fn best(&self, byte_price: Option<f64>) -> Vertex {
        let mut own = vec![0.0; self.tasks.len()];
        let mut bytes_s = 0.0;
        // What a Mop is worth; of equal ones that with fewer bytes.
        let worth = |application: &usize| {
            let task = self.tasks[*application];
            match byte_price {
                Some(price) => (self.prices[*application] - price * task.bytes) / task.mop,
                None if task.bytes > 0.0 => 0.0,
                None => self.prices[*application] / task.mop,
            }
        };
        let key = |application: &usize| (worth(application), -self.tasks[*application].bytes);
        let dearest = (0..self.tasks.len())
            .max_by(|one, other| key(one).partial_cmp(&key(other)).unwrap_or(std::cmp::Ordering::Equal));
        if let Some(application) = dearest.filter(|application| worth(application) > 0.0) {
            own[application] = self.speed_mops / self.tasks[application].mop;
            bytes_s += own[application] * self.tasks[application].bytes;
        }
        let mut children: Vec<f64> = self.children.iter().map(|(curve, _)| curve.points[0].bytes_s).collect();
        if let Some(price) = byte_price {
            let per_second = |piece: &Piece| (piece.slope - price) * piece.capacity_bytes_s;
            let mut wanted: Vec<&Piece> = self.pieces.iter().filter(|piece| piece.slope > price).collect();
            // Stable: of pieces that are worth the same the child's earlier one stays first.
            wanted.sort_by(|one, other| per_second(other).total_cmp(&per_second(one)));
            let mut free = 1.0;
            for piece in wanted {
                let share = (free * piece.capacity_bytes_s / piece.bytes_s).min(1.0);
                children[piece.child] += share * piece.bytes_s;
                free -= share * piece.bytes_s / piece.capacity_bytes_s;
                if share < 1.0 {
                    break;
                }
            }
        }
        let mut rates = own.clone();
        for ((curve, _), of_child) in self.children.iter().zip(&children) {
            bytes_s += of_child;
            rates.iter_mut().zip(curve.rates(*of_child)).for_each(|(sum, rate)| *sum += rate);
        }
        let value = dot(self.prices, &rates);
        Vertex { value, point: Point { bytes_s, rates }, division: Division { own, children } }
    }

    /// How far the curve is above the chord between two of its points, and the point that is furthest.
    fn gap(&self, before: &Vertex, after: &Vertex) -> (f64, Vertex) {
        let slope = (after.value - before.value) / (after.point.bytes_s - before.point.bytes_s);
        let between = self.best(Some(slope.max(0.0)));
        let gap = between.value - before.value - slope * (between.point.bytes_s - before.point.bytes_s);
        let is_between = (before.point.bytes_s..after.point.bytes_s).contains(&between.point.bytes_s)
            && between.point.bytes_s > before.point.bytes_s;
        (if is_between { gap.max(0.0) } else { 0.0 }, between)
    }
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

fn mixed(before: &[f64], after: &[f64], share: f64) -> Vec<f64> {
    before.iter().zip(after).map(|(before, after)| before + (after - before) * share).collect()
}
