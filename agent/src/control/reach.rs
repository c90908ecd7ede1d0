//! Whether others reach this machine: some are asked to connect to it.

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use idlewood_api::ReachView;
use idlewood_net::{DialledBack, NetHandle};
use idlewood_trust::identity;

use super::answers::Answer;

pub(super) fn routes(net: NetHandle) -> Router {
    Router::new().route("/v1/reach", post(reach)).with_state(net)
}

async fn reach(State(net): State<NetHandle>) -> Answer<Vec<ReachView>> {
    Ok(Json(net.dialled_back().await.into_iter().map(view).collect()))
}

fn view(told: DialledBack) -> ReachView {
    let (ahead, margin) = told.clock_ahead_s.unzip();
    ReachView {
        by: identity::to_libp2p(told.by).to_string(),
        at: told.at.map(|at| at.to_string()),
        failure: told.failure,
        clock_ahead_s: ahead,
        clock_margin_s: margin,
    }
}
