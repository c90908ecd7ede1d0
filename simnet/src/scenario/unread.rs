//! Settings that would change nothing: setting one is likely a mistake.

use super::{Equipment, Latencies, Scenario, Sessions, Workload};

impl Scenario {
    /// What to set so that the setting `name` has an effect; none if it has one.
    pub fn unread(&self, name: &str) -> Option<&'static str> {
        let is_exponential = self.sessions == Sessions::Exponential;
        match name {
            "churn" | "downtime" if !is_exponential => Some("sessions = \"exponential\""),
            "downtime" | "queue_lost" if is_exponential && self.churn.is_none() => Some("churn"),
            "keep_results" if self.peer.stewards == 0 => Some("stewards of [policy]"),
            "latency_ms" if self.latencies != Latencies::Constant => Some("latencies = \"constant\""),
            "slots" if self.cores != Equipment::Paper => Some("cores = \"paper\""),
            "tasks_per_node" | "heavy_tailed" if self.workload != Workload::Paper => Some("workload = \"paper\""),
            _ => None,
        }
    }

    /// Refuses settings without effect, unless they have their defaults, as in the file of defaults.
    /// [`Scenario::parse`] accepts them, since a flag may give them an effect.
    ///
    /// # Errors
    /// A sentence with the first such setting, and what to write instead.
    pub fn check_read(&self) -> Result<(), String> {
        let default = Self::default();
        for (name, is_set) in [
            ("churn", self.churn != default.churn),
            ("downtime", self.downtime != default.downtime),
            ("queue_lost", self.queue_lost != default.queue_lost),
            ("keep_results", self.keep_results != default.keep_results),
            ("latency_ms", self.latency_ms != default.latency_ms),
            ("slots", self.slots != default.slots),
            ("tasks_per_node", self.tasks_per_node != default.tasks_per_node),
            ("heavy_tailed", self.heavy_tailed != default.heavy_tailed),
        ] {
            if let Some(instead) = self.unread(name).filter(|_| is_set) {
                return Err(format!("{name} would change nothing in this scenario: leave that out, or set {instead}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_without_effect_is_refused_by_name_unless_it_is_the_default() {
        assert_eq!(Scenario::default().check_read(), Ok(()));
        for (text, name, instead) in [
            ("queue_lost = true\n", "queue_lost", "churn"),
            ("downtime = \"9m\"\n", "downtime", "churn"),
            ("sessions = \"desktops\"\nchurn = \"4h\"\n", "churn", "sessions = \"exponential\""),
            ("workload = \"desktops\"\nheavy_tailed = true\n", "heavy_tailed", "workload = \"paper\""),
            ("cores = \"desktops\"\nslots = 2\n", "slots", "cores = \"paper\""),
        ] {
            let sentence = format!("{name} would change nothing in this scenario: leave that out, or set {instead}");
            assert_eq!(Scenario::parse(text).unwrap().check_read(), Err(sentence), "{text}");
        }
        for text in
            ["queue_lost = true\nchurn = \"4h\"\n", "sessions = \"servers\"\nqueue_lost = true\n", "slots = 2\n"]
        {
            assert_eq!(Scenario::parse(text).unwrap().check_read(), Ok(()), "{text}");
        }
    }
}
