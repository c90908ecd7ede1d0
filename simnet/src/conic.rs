//! Problems for the general convex solver (Clarabel, an interior-point method for conic problems) that judges what we compute.

use clarabel::algebra::CscMatrix;
use clarabel::solver::{DefaultSettings, DefaultSolution, DefaultSolver, IPSolver, SupportedConeT};

/// Rows of a conic problem: limit − Σ value·variable lies in a cone.
#[derive(Clone, Default)]
pub(crate) struct Rows {
    places: Vec<usize>,
    variables: Vec<usize>,
    values: Vec<f64>,
    limits: Vec<f64>,
}

impl Rows {
    /// A row with these variables and this limit.
    pub(crate) fn push(&mut self, uses: impl IntoIterator<Item = (usize, f64)>, limit: f64) {
        for (variable, value) in uses {
            self.places.push(self.limits.len());
            self.variables.push(variable);
            self.values.push(value);
        }
        self.limits.push(limit);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.limits.len()
    }

    /// Minimises costs·x + Σ curvature·x²/2. The status of the solution says whether it is one.
    ///
    /// # Errors
    /// A sentence where the solver refuses the problem.
    pub(crate) fn solve(
        self,
        cones: &[SupportedConeT<f64>],
        costs: &[f64],
        curvatures: &[f64],
    ) -> Result<DefaultSolution<f64>, String> {
        let Self { places, variables, values, limits } = self;
        let count = costs.len();
        let matrix = CscMatrix::new_from_triplets(limits.len(), count, places, variables, values);
        let all = || (0..count).collect::<Vec<_>>();
        let quadratic = CscMatrix::new_from_triplets(count, count, all(), all(), curvatures.to_vec());
        let settings = DefaultSettings { verbose: false, ..DefaultSettings::default() };
        let mut solver = DefaultSolver::new(&quadratic, costs, &matrix, &limits, cones, settings)
            .map_err(|error| format!("the convex solver refuses the platform: {error}"))?;
        solver.solve();
        Ok(solver.solution)
    }
}
