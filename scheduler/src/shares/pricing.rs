//! Max-min fair rates on a tree whose machines send to one child at a time (CG-WAVE): column generation (Gilmore and Gomory 1961;
//! Dantzig and Wolfe 1960) at the root, one wave for each set of prices.
//!
//! A column is something that the whole tree can do: tasks/s of each application. The root mixes the columns that it knows by shares θ
//! so that the smallest ρ_k/ω_k is the largest, and the prices of that mixture say which column would help most: the one with the largest
//! Σ y_k·ρ_k, which a wave of [curves](super::Curve) finds. Every machine keeps its part of each column, and mixes them by the same θ: limits are
//! linear, so that a mixture of what can be done can be done.
//!
//! No rates are better than Σ y_k·ρ_k of the best column allows, so that each wave also says how good the mixture is.

use super::curve::Curve;
use super::game::{Mixtures, solve};

/// A task of an application.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Task {
    /// Its work in Mop; above 0.
    pub mop: f64,
    /// What is fetched for it, in bytes; at least 0.
    pub bytes: f64,
}

/// The root's part: columns, and the best mixture of them.
#[derive(Clone, Debug)]
pub struct Columns {
    weights: Vec<f64>,
    columns: Vec<Vec<f64>>,
    bound: f64,
    /// The prices that gave the bound.
    bound_prices: Vec<f64>,
}

/// The best that can be made of some columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    /// Share θ of each column; they add up to 1.
    pub shares: Vec<f64>,
    /// The smallest ρ_k/ω_k.
    pub throughput: f64,
    /// What a task of each application is worth; Σ ω_k·y_k = 1.
    pub prices: Vec<f64>,
}

impl Columns {
    /// No columns yet, for applications with these weights (above 0).
    pub fn new(weights: Vec<f64>) -> Self {
        Self { bound_prices: weights.iter().map(|_| 0.0).collect(), weights, columns: Vec::new(), bound: f64::INFINITY }
    }

    /// The prices of the first wave, which prices all of them at once: each application alone.
    pub fn first_prices(&self) -> Vec<Vec<f64>> {
        let alone = |application: usize| {
            let price = |(other, weight): (usize, &f64)| if other == application { 1.0 / weight } else { 0.0 };
            self.weights.iter().enumerate().map(price).collect()
        };
        (0..self.weights.len()).map(alone).collect()
    }

    /// Adds the best column at these prices, of which Σ ω_k·y_k is 1: the last point of the root's curve.
    pub fn add(&mut self, prices: &[f64], curve: &Curve) {
        let rates = &curve.last().rates;
        let value: f64 = prices.iter().zip(rates).map(|(price, rate)| price * rate).sum();
        if value + curve.error() < self.bound {
            (self.bound, self.bound_prices) = (value + curve.error(), prices.to_vec());
        }
        self.columns.push(rates.clone());
    }

    /// No rates have a smallest ρ_k/ω_k above this.
    pub fn bound(&self) -> f64 {
        self.bound
    }

    /// The best mixture of the columns; none where they leave an application with nothing.
    pub fn mixture(&self) -> Option<Mixture> {
        let of = |column: &Vec<f64>| column.iter().zip(&self.weights).map(|(rate, weight)| rate / weight).collect();
        let gains: Vec<Vec<f64>> = self.columns.iter().map(of).collect();
        let Mixtures { columns: shares, rows } = solve(&gains)?;
        let gained = |row: usize| shares.iter().zip(&gains).map(|(share, column)| share * column[row]).sum::<f64>();
        let throughput = (0..rows.len()).map(gained).fold(f64::INFINITY, f64::min);
        let prices = rows.iter().zip(&self.weights).map(|(share, weight)| share / weight).collect();
        Some(Mixture { shares, throughput, prices })
    }
}
