//! The control API as an OpenAPI document (3.1), whose schemas are made from the types that requests are read as and answered with.
//!
//! The table [`ROUTES`] is beside the routers, and a test holds that each of their routes is in it, and that each of it is answered.

use std::collections::BTreeMap;

use idlewood_api::{
    Bag, BagDetail, BlobBody, CleanRequest, CleanedView, DrainRequest, ErrorBody, InvitationView, InviteRequest,
    LinesRequest, Live, LiveRequest, Machines, PauseRequest, Peers, PriorityRequest, ReachView, Receipt, RenameRequest,
    RerunRequest, RevokeRequest, RevokedView, Status, SubmitRequest, TaskResult, Tasks, Ticket,
};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

/// Makes the schema of a type.
type Typed = fn(&mut SchemaGenerator) -> Schema;

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// What is sent or answered.
#[derive(Clone, Copy)]
enum Content {
    Nothing,
    Json(Typed),
    Bytes,
}

/// One way to ask the agent.
struct Route {
    method: &'static str,
    path: &'static str,
    /// What it does.
    summary: &'static str,
    /// Parameters of the query: name, whether it must be there, type, meaning.
    query: &'static [(&'static str, bool, &'static str, &'static str)],
    body: Content,
    answer: Content,
}

const fn get(path: &'static str, summary: &'static str, answer: Typed) -> Route {
    Route { method: "get", path, summary, query: &[], body: Content::Nothing, answer: Content::Json(answer) }
}

const fn order(path: &'static str, summary: &'static str, answer: Typed) -> Route {
    Route { method: "post", ..get(path, summary, answer) }
}

const fn post(path: &'static str, summary: &'static str, body: Typed, answer: Typed) -> Route {
    Route { body: Content::Json(body), ..order(path, summary, answer) }
}

const fn with(
    query: &'static [(&'static str, bool, &'static str, &'static str)],
    Route { method, path, summary, body, answer, .. }: Route,
) -> Route {
    Route { method, path, summary, query, body, answer }
}

/// All of them.
const ROUTES: &[Route] = &[
    get("/v1/status", "What this machine does and why, and how large the grid is", of::<Status>),
    get("/v1/peers", "This machine's place in the tree and on the line", of::<Peers>),
    get(
        "/v1/names",
        "What machines are called that this one has to do with, by peer id",
        of::<BTreeMap<String, String>>,
    ),
    with(
        &[
            ("after", false, "string", "Where the page begins: `next` of the page before; absent: at the beginning"),
            ("state", false, "string", "Only machines in these states, with commas between"),
            ("name", false, "string", "Only machines whose name, or id, matches this pattern: lab-*"),
        ],
        get("/v1/machines", "The machines of the grid, a page at a time", of::<Machines>),
    ),
    with(
        &[
            ("state", false, "string", "Only bags in these states, with commas between"),
            ("since_s", false, "number", "Only bags submitted within so many seconds"),
            ("before", false, "string", "Only those behind this bag, the last of an earlier list"),
            ("limit", false, "integer", "So many at most, the latest"),
        ],
        get("/v1/bags", "The bags submitted here, the latest first", of::<Vec<Bag>>),
    ),
    post("/v1/bags", "Submit a bag whose blobs are here; answered when it is durable", of::<SubmitRequest>, of::<Bag>),
    get("/v1/bags/{id}", "One bag: its numbers, and the machines that hold its tasks", of::<BagDetail>),
    with(
        &[
            ("from", false, "integer", "From the task with this index on"),
            ("most", false, "integer", "So many tasks at most; absent: 1000"),
            ("state", false, "string", "Only tasks in these states, with commas between"),
        ],
        get("/v1/bags/{id}/tasks", "Its tasks, by index", of::<Tasks>),
    ),
    with(
        &[
            ("from", false, "integer", "From the task with this index on"),
            ("most", false, "integer", "So many results at most; absent: all"),
        ],
        get("/v1/bags/{id}/results", "Results of its tasks that are over, by index", of::<Vec<TaskResult>>),
    ),
    Route {
        answer: Content::Bytes,
        ..get(
            "/v1/bags/{id}/results/{index}/output",
            "The output of a task, if it is small; 409 names the blob that it is otherwise",
            of::<BlobBody>,
        )
    },
    get("/v1/bags/{id}/receipts", "What the machines signed that ran its tasks", of::<Vec<Receipt>>),
    with(
        &[("results", true, "boolean", "Whether the results so far are in it")],
        get("/v1/bags/{id}/ticket", "All with which another machine could go on with the bag", of::<Ticket>),
    ),
    post(
        "/v1/bags/{id}/live",
        "What running tasks have written behind what the caller has",
        of::<LiveRequest>,
        of::<Live>,
    ),
    post("/v1/bags/{id}/lines", "More tasks of an endless bag, durable with the answer", of::<LinesRequest>, of::<Bag>),
    order("/v1/bags/{id}/close", "No more tasks of an endless bag will come", of::<Bag>),
    post(
        "/v1/bags/{id}/drain",
        "Results of an endless bag are saved, and need not be kept",
        of::<DrainRequest>,
        of::<Bag>,
    ),
    order("/v1/bags/{id}/cancel", "Give the bag up", of::<Bag>),
    order("/v1/bags/{id}/hold", "No task of it begins any more", of::<Bag>),
    order("/v1/bags/{id}/release", "It goes on, without waiting for other bags", of::<Bag>),
    post("/v1/bags/{id}/rename", "Give it another name", of::<RenameRequest>, of::<Bag>),
    post("/v1/bags/{id}/priority", "Its place among the bags of this machine", of::<PriorityRequest>, of::<Bag>),
    post("/v1/bags/{id}/rerun", "Run tasks again that are over", of::<RerunRequest>, of::<Bag>),
    order("/v1/bags/{id}/remove", "Remove a bag that is over, with its results", of::<Bag>),
    post("/v1/pause", "All tasks here stand still until resumed, or for a while", of::<PauseRequest>, of::<Status>),
    order("/v1/resume", "Work for the grid again", of::<Status>),
    order("/v1/finish", "Take no new tasks, and end when those that run have", of::<Status>),
    order("/v1/restart", "End in good order and start anew; address and token change", of::<Status>),
    post("/v1/grid/invite", "An invitation to the grid", of::<InviteRequest>, of::<InvitationView>),
    post("/v1/grid/revoke", "Throw a machine out of the grid for good", of::<RevokeRequest>, of::<RevokedView>),
    order("/v1/grid/leave", "Leave the grid for good, and start anew alone; address and token change", of::<Status>),
    order(
        "/v1/reach",
        "Have other machines connect to this one, and say at which address they could",
        of::<Vec<ReachView>>,
    ),
    post("/v1/clean", "Remove blobs that nothing needs, or count them", of::<CleanRequest>, of::<CleanedView>),
    Route {
        body: Content::Bytes,
        ..with(
            &[("blob", true, "string", "BLAKE3 of the content, in hex")],
            order("/v1/blobs", "Upload a program or an input; durable with a bag that names it", of::<BlobBody>),
        )
    },
    Route { answer: Content::Bytes, ..get("/v1/blobs/{hash}", "A blob; HEAD says whether it is here", of::<BlobBody>) },
];

/// The document.
pub(crate) fn document() -> Value {
    let mut words = Words::new();
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let operation = operation(route, &mut words);
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method] = operation;
    }
    let error = words.answers.subschema_for::<ErrorBody>();
    let schemas = words.definitions();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "The control API of an idlewood agent",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "On loopback only. control.json in the agent's state directory has its address and a token; both change with every start.",
        },
        "servers": [{ "url": "http://127.0.0.1:{port}", "variables": { "port": { "default": "0", "description": "As control.json says." } } }],
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "responses": {
                "Failure": {
                    "description": "A sentence that says what to do; nothing was changed",
                    "content": { "application/json": { "schema": error } },
                },
            },
        },
    })
}

/// The schemas of what is sent, where fields with a default may be left out, and of what is answered, where they are there.
struct Words {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Words {
    fn new() -> Self {
        // OpenAPI 3.1 has JSON Schema of this draft.
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        let (requests, answers) = (settings.clone().for_deserialize(), settings.for_serialize());
        Self { requests: requests.into_generator(), answers: answers.into_generator() }
    }

    fn definitions(mut self) -> Map<String, Value> {
        let mut definitions = self.requests.take_definitions(true);
        definitions.extend(self.answers.take_definitions(true));
        definitions
    }
}

fn operation(route: &Route, words: &mut Words) -> Value {
    let in_path = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).map(|name| {
        let (kind, meaning) = match name {
            "index" => ("integer", "The index of a task"),
            "hash" => ("string", "BLAKE3 of the content, in hex"),
            _ => ("string", "The id of a bag, a unique beginning of it, its name, or last"),
        };
        json!({ "name": name, "in": "path", "required": true, "description": meaning, "schema": { "type": kind } })
    });
    let in_query = route.query.iter().map(|(name, is_required, kind, meaning)| {
        json!({ "name": name, "in": "query", "required": is_required, "description": meaning, "schema": { "type": kind } })
    });
    let parameters: Vec<Value> = in_path.chain(in_query).collect();
    let mut operation = json!({
        "summary": route.summary,
        "operationId": name(route),
        "parameters": parameters,
        "responses": {
            "200": { "description": "Done" },
            "default": { "$ref": "#/components/responses/Failure" },
        },
    });
    if let Some(content) = content(route.body, &mut words.requests) {
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    if let Some(content) = content(route.answer, &mut words.answers) {
        operation["responses"]["200"]["content"] = content;
    }
    operation
}

fn content(content: Content, generator: &mut SchemaGenerator) -> Option<Value> {
    match content {
        Content::Nothing => None,
        Content::Json(of) => Some(json!({ "application/json": { "schema": of(generator) } })),
        Content::Bytes => Some(json!({ "application/octet-stream": {} })),
    }
}

/// `get_v1_bags_id_tasks`.
fn name(route: &Route) -> String {
    let words = route.path.split(['/', '{', '}']).filter(|word| !word.is_empty());
    std::iter::once(route.method).chain(words).collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// `(method, path)` of each call of `.route(` in the sources beside this one.
    fn routed() -> BTreeSet<(String, String)> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let beside =
            std::fs::read_dir(source.join("control")).expect("the sources").map(|entry| entry.expect("one").path());
        let mut found = BTreeSet::new();
        for file in beside.chain([source.join("control.rs")]) {
            let text = std::fs::read_to_string(&file).expect("it is text");
            // What tests route is theirs.
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            for call in text.split(".route(").skip(1) {
                let (path, handlers) = call.split_once(',').expect("a path and handlers");
                let handlers: String = handlers.lines().next().unwrap_or_default().split(".route").collect();
                let handlers = handlers.split(").with_state").next().unwrap_or_default();
                for method in ["get", "post"] {
                    if handlers.contains(&format!("{method}(")) {
                        found.insert((method.to_owned(), path.trim_matches(['"', ' ', '\n']).to_owned()));
                    }
                }
            }
        }
        found
    }

    #[test]
    fn every_route_is_described_and_every_description_is_a_route() {
        let described: BTreeSet<(String, String)> =
            ROUTES.iter().map(|route| (route.method.to_owned(), route.path.to_owned())).collect();
        assert_eq!(described.len(), ROUTES.len(), "a route is described twice");
        let routed: BTreeSet<(String, String)> =
            routed().into_iter().filter(|(_, path)| path.starts_with("/v1")).collect();
        assert_eq!(described, routed);
        assert!(routed.len() > 25, "{routed:?}");
    }

    #[test]
    fn all_references_lead_to_schemas_with_descriptions() {
        let document = document();
        let text = document.to_string();
        let mut references = 0;
        for rest in text.split("\"$ref\":\"#").skip(1) {
            let pointer = rest.split('"').next().expect("a quote ends it");
            assert!(document.pointer(pointer).is_some(), "{pointer}");
            references += 1;
        }
        assert!(references > 30, "{references}");
        // What has a default need not be sent.
        let required = document.pointer("/components/schemas/SubmitRequest/required").expect("some fields are");
        let required: Vec<&str> = required.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        assert!(
            required.contains(&"program") && !required.contains(&"priority") && !required.contains(&"hold"),
            "{required:?}"
        );
        let mut both = Words::new();
        for route in ROUTES {
            operation(route, &mut both);
        }
        let (sent, answered) = (both.requests.take_definitions(true), both.answers.take_definitions(true));
        let differ = |(name, schema): (&String, &Value)| answered.get(name).is_some_and(|other| other != schema);
        assert!(!sent.iter().any(differ), "a type is sent and answered, and has two schemas under one name");
        let names: BTreeSet<String> = ROUTES.iter().map(name).collect();
        assert_eq!(names.len(), ROUTES.len(), "operations have names of their own");
    }
}
