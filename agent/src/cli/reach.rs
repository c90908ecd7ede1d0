//! The network's part of `idlewood doctor`: at which addresses others reach this machine, and whose clock is wrong.

use idlewood_api::ReachView;
use idlewood_api::client::{Client, ClientError};
use idlewood_sensing::Unavailable;

use super::context::Context;
use super::finding::Finding;
use crate::output;

/// A difference of clocks that is told. Certificates and times of bags rest on clocks; seconds do no harm.
const CLOCK_S: f64 = 5.0;

/// Asks the agent, which asks other machines.
pub(super) fn find(context: &Context) -> Vec<Finding> {
    let asked = Client::open(&context.state_dir).and_then(|client| Ok((client.status()?, client.reach()?)));
    match asked {
        Ok((status, told)) => {
            let mut findings = vec![reachable(status.grid.is_some(), &status.listen, &told)];
            findings.extend(clock(&told));
            findings
        }
        Err(ClientError::NoAgent { .. } | ClientError::NotReady { .. }) => {
            vec![Finding::works("network", "not looked at: no agent runs that others could reach")]
        }
        Err(error) => {
            vec![Finding::fails("network", Unavailable::new(error.to_string(), "see whether the agent still runs"))]
        }
    }
}

/// Whether others reach this machine, which is in a grid or not.
fn reachable(in_grid: bool, listen: &[String], told: &[ReachView]) -> Finding {
    let listens = listen.join(", ");
    if !in_grid {
        return Finding::works(
            "network",
            format!("listens at {listens}; it belongs to no grid, and nobody has to reach it"),
        );
    }
    let reached: Vec<&ReachView> = told.iter().filter(|told| told.failure.is_none()).collect();
    if let Some(first) = reached.first() {
        let at = first.at.as_deref().unwrap_or("its address");
        let by = output::count(reached.len() as u64, "machine");
        return Finding::works("network", format!("reached at {at} by {by} of {} that tried", told.len()));
    }
    let port = listen.iter().find_map(|address| address.split("/tcp/").nth(1)?.split('/').next());
    let port = port.unwrap_or("4001");
    let Some((first, why)) = told.iter().find_map(|told| Some((told, told.failure.as_ref()?))) else {
        let alone = listen.iter().all(|address| address.contains("/127.") || address.contains("/::1/"));
        return if alone {
            let remedy = "idlewood config set network.listen 0.0.0.0:4001, then idlewood restart";
            Finding::fails(
                "network",
                Unavailable::new(format!("listens at {listens}, which this machine alone reaches"), remedy),
            )
        } else {
            Finding::works(
                "network",
                format!("listens at {listens}; no other machine is connected that could try to reach it"),
            )
        };
    };
    let by = output::short_peer(&first.by);
    let why = match &first.at {
        Some(at) => format!("{by} does not reach this machine at {at}: {why}"),
        None => format!("{by} was asked whether it reaches this machine: {why}"),
    };
    let remedy = if first.at.is_none() || why.contains("ask again") {
        "call this once more in a while".to_owned()
    } else {
        format!(
            "open port {port} (TCP) in this machine's firewall, for example `sudo ufw allow {port}/tcp` or `sudo firewall-cmd \
             --permanent --add-port={port}/tcp && sudo firewall-cmd --reload`; behind a router, forward that port to this machine"
        )
    };
    Finding::fails("network", Unavailable::new(why, remedy))
}

/// Whether this machine's clock agrees with others'. More than half of those that say have to differ alike: one may be wrong itself.
fn clock(told: &[ReachView]) -> Option<Finding> {
    let mut ahead: Vec<(f64, f64)> =
        told.iter().filter_map(|told| Some((told.clock_ahead_s?, told.clock_margin_s?))).collect();
    ahead.sort_by(|one, other| one.0.total_cmp(&other.0));
    let &(middle_s, margin_s) = ahead.get(ahead.len() / 2)?;
    let by = output::count(ahead.len() as u64, "machine");
    if middle_s.abs() - margin_s <= CLOCK_S {
        return Some(Finding::works("clock", format!("agrees with that of {by}")));
    }
    let word = if middle_s > 0.0 { "behind" } else { "ahead of" };
    let why = format!("{} {word} that of {by}", output::duration(middle_s.abs()));
    Some(Finding::fails("clock", Unavailable::new(why, "set it, for example with `sudo timedatectl set-ntp true`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(failure: Option<&str>, ahead_s: f64) -> ReachView {
        ReachView {
            by: "12D3KooWabcdefghijkl".to_owned(),
            at: Some("192.0.2.7:4001".to_owned()),
            failure: failure.map(str::to_owned),
            clock_ahead_s: Some(ahead_s),
            clock_margin_s: Some(0.1),
        }
    }

    #[test]
    fn who_is_not_reached_reads_what_to_open() {
        let far = |told: &[ReachView]| reachable(true, &["/ip4/192.0.2.7/tcp/4001".to_owned()], told);
        let loopback = |grid: bool| reachable(grid, &["/ip4/127.0.0.1/tcp/4001".to_owned()], &[]);
        let reached = far(&[told(Some("timed out"), 0.0), told(None, 0.0)]);
        assert!(reached.works && reached.detail.contains("192.0.2.7:4001 by 1 machine of 2"), "{reached:?}");
        let closed = far(&[told(Some("timed out"), 0.0)]);
        let advice = closed.advice.clone().unwrap_or_default();
        assert!(
            !closed.works && closed.detail.contains("timed out") && advice.contains("ufw allow 4001/tcp"),
            "{closed:?}"
        );
        let busy = far(&[told(Some("ask again in some seconds"), 0.0)]);
        assert!(busy.advice.is_some_and(|advice| advice.contains("once more")));
        assert!(far(&[]).works, "nobody could try");
        let here = loopback(true);
        assert!(!here.works && here.advice.is_some_and(|advice| advice.contains("network.listen")));
        assert!(loopback(false).works, "without a grid nobody has to");
    }

    #[test]
    fn a_clock_that_differs_from_most_is_told() {
        assert_eq!(clock(&[]), None);
        assert!(clock(&[told(None, 0.3), told(None, 400.0), told(None, -0.2)]).expect("they say").works);
        let behind = clock(&[told(None, 90.0), told(None, 91.0), told(None, 0.0)]).expect("they say");
        assert!(!behind.works && behind.detail.contains("behind"), "{behind:?}");
        assert!(clock(&[told(None, -90.0)]).is_some_and(|found| found.detail.contains("ahead of")));
    }
}
