//! How much each application has to fetch for its work.

/// Bytes for a Mop of each application (the paper's communication-to-computation ratio), in the order in which all vectors of
/// this module list the applications.
#[derive(Clone, Debug, PartialEq)]
pub struct Ratios {
    of: Vec<f64>,
    /// Numbers of the applications, the smallest ratio first.
    ascending: Vec<usize>,
}

/// A ratio that no application can have; nothing was made.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("application {application} has {ratio} bytes for a Mop: write a finite number that is not negative")]
pub struct RatioError {
    /// Its number, from 0.
    pub application: usize,
    /// What was given.
    pub ratio: f64,
}

impl Ratios {
    /// Takes the ratios of all applications, in bytes for a Mop; 0 where nothing is fetched.
    ///
    /// # Errors
    /// The first ratio that is negative or not finite.
    pub fn new(of: Vec<f64>) -> Result<Self, RatioError> {
        if let Some(application) = of.iter().position(|ratio| !(ratio.is_finite() && *ratio >= 0.0)) {
            return Err(RatioError { application, ratio: of[application] });
        }
        let mut ascending: Vec<usize> = (0..of.len()).collect();
        ascending.sort_by(|one, other| of[*one].total_cmp(&of[*other]));
        Ok(Self { of, ascending })
    }

    /// How many applications there are.
    pub fn applications(&self) -> usize {
        self.of.len()
    }

    /// Bytes for a Mop of this application.
    pub fn of(&self, application: usize) -> f64 {
        self.of[application]
    }

    pub(super) fn ascending(&self) -> &[usize] {
        &self.ascending
    }

    /// How much of what a part can do for application `other` alone a unit of work of `application` uses up: min(c_k, c_i)/c_i.
    pub(super) fn use_of(&self, application: usize, other: usize) -> f64 {
        if self.of[application] >= self.of[other] { 1.0 } else { self.of[application] / self.of[other] }
    }

    /// Work for which so many bytes suffice.
    pub(super) fn work_within(&self, application: usize, bytes: f64) -> f64 {
        if self.of[application] == 0.0 { f64::INFINITY } else { bytes / self.of[application] }
    }
}
