//! `idlewood schema`: what `--output json` prints, as JSON Schema, made from the types that are printed.
//!
//! Within one version fields are only added: programs ignore what they do not know. A field that goes, or means something else, raises
//! the version.

use std::process::ExitCode;

use idlewood_api::{Bag, ErrorBody, InvitationView, Machines, Peers, RevokedView, Status, SubmitRequest, Tasks};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use super::{clean, config, explain, finding, grid, logs, receipts, results, service, show, store, ticket};
use crate::control::openapi;
use crate::{bench, demo, output};

/// Version of all of it.
const VERSION: u32 = 1;

/// Arguments of `schema`.
#[derive(Debug, clap::Args)]
pub(super) struct SchemaArgs {
    /// Print the control API as OpenAPI 3.1 instead
    #[arg(long)]
    openapi: bool,
}

/// Prints the schema.
///
/// # Errors
/// When standard output does not take it.
pub(super) fn run(args: &SchemaArgs) -> anyhow::Result<ExitCode> {
    output::json(&if args.openapi { openapi::document() } else { schema() })?;
    Ok(ExitCode::SUCCESS)
}

/// What commands print that take several bags: one where one is named, else a list.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it describes what is printed")]
enum OneOrAll<T> {
    One(T),
    All(Vec<T>),
}

/// The types of commands: what each prints with `--output json`.
fn commands(of: &mut SchemaGenerator) -> Vec<(&'static str, Schema)> {
    fn a<T: JsonSchema>(of: &mut SchemaGenerator) -> Schema {
        of.subschema_for::<T>()
    }
    let status = ["status", "pause", "resume", "finish", "restart"].map(|name| (name, a::<Status>(of)));
    let bag = ["submit", "bag rename", "bag feed"].map(|name| (name, a::<Bag>(of)));
    let orders = ["bag close", "bag cancel", "bag hold", "bag release", "bag priority", "bag rerun", "bag rm"];
    let bags = ["bag watch", "bag wait"].into_iter().chain(orders);
    let bags: Vec<_> = bags.map(|name| (name, a::<OneOrAll<Bag>>(of))).collect();
    let grid = ["grid create", "grid join", "grid show"].map(|name| (name, a::<grid::GridJson>(of)));
    let tables = ["config show", "config set", "config unset"].map(|name| (name, a::<config::Tables>(of)));
    let services = ["service install", "service uninstall", "service status"];
    let services = services.map(|name| (name, a::<service::ServiceJson>(of)));
    let others = [
        ("submit --dry-run", a::<SubmitRequest>(of)),
        ("bag list", a::<Vec<Bag>>(of)),
        ("bag show", a::<OneOrAll<show::Shown>>(of)),
        ("bag tasks", a::<OneOrAll<Tasks>>(of)),
        ("bag explain", a::<OneOrAll<explain::BagExplained>>(of)),
        ("bag logs", a::<logs::Logs>(of)),
        ("bag get", a::<OneOrAll<results::Fetched>>(of)),
        ("bag get --follow", a::<Bag>(of)),
        ("bag receipts", a::<Vec<receipts::View>>(of)),
        ("bag ticket", a::<ticket::Written>(of)),
        ("bag adopt", a::<ticket::Adopted>(of)),
        ("explain", a::<explain::MachineExplained>(of)),
        ("peers", a::<Peers>(of)),
        ("machines", a::<Machines>(of)),
        ("grid invite", a::<InvitationView>(of)),
        ("grid revoke", a::<RevokedView>(of)),
        ("grid leave", a::<grid::LeftJson>(of)),
        ("config describe", a::<Vec<config::Described>>(of)),
        ("config get", a::<config::One>(of)),
        ("config path", a::<config::Place>(of)),
        ("store check", a::<store::Report>(of)),
        ("store export", a::<store::Exported>(of)),
        ("clean", a::<clean::CleanJson>(of)),
        ("doctor", a::<Vec<finding::Finding>>(of)),
        ("demo", a::<demo::Summary>(of)),
        ("bench", a::<bench::Report>(of)),
    ];
    status.into_iter().chain(bag).chain(bags).chain(grid).chain(tables).chain(services).chain(others).collect()
}

fn schema() -> Value {
    let mut of = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let commands: Map<String, Value> =
        commands(&mut of).into_iter().map(|(name, schema)| (name.to_owned(), schema.to_value())).collect();
    let error = of.subschema_for::<ErrorBody>();
    let definitions = of.take_definitions(true);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What idlewood prints with --output json",
        "version": VERSION,
        "idlewood": env!("CARGO_PKG_VERSION"),
        "commands": commands,
        "error": error,
        "$defs": definitions,
    })
}
