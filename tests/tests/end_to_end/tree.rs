//! The tree of a grid, computed from its members by a sort and a stack; shares no code with the overlay.

use serde_json::Value;

use crate::harness::Agent;

/// A machine's place, according to `idlewood peers` and `idlewood status`. Machines are identified by their peer ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    predecessor: Option<String>,
    successor: Option<String>,
    is_root: bool,
    root: Option<String>,
    depth: Option<u64>,
    router_parent: Option<String>,
    leaf_parent: Option<String>,
    children: Vec<Child>,
    grid_machines: u64,
    grid_height: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Child {
    peer: String,
    node: String,
    machines: u64,
    height: u64,
}

impl Place {
    /// Whether this machine hosts the root.
    pub(crate) fn is_root(&self) -> bool {
        self.is_root
    }

    /// The place as the agent sees it.
    pub(crate) fn seen_by(agent: &Agent) -> Self {
        let (peers, status) = (agent.ask(&["peers"]), agent.ask(&["status"]));
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let name = |link: &str| text(&peers[link]["peer"]);
        let number = |value: &Value| value.as_u64().expect("a number");
        let child = |child: &Value| Child {
            peer: text(&child["peer"]).expect("a name"),
            node: text(&child["node"]).expect("a word"),
            machines: number(&child["machines"]),
            height: number(&child["height"]),
        };
        Self {
            predecessor: name("predecessor"),
            successor: name("successor"),
            is_root: peers["is_root"].as_bool().expect("yes or no"),
            root: name("root"),
            depth: peers["depth"].as_u64(),
            router_parent: name("router_parent"),
            leaf_parent: name("leaf_parent"),
            children: peers["children"].as_array().expect("a list").iter().map(child).collect(),
            grid_machines: number(&status["grid_machines"]),
            grid_height: number(&status["grid_height"]),
        }
    }
}

/// A member: its position on the line, and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member {
    position: Vec<u8>,
    pub(crate) peer: String,
}

impl Member {
    /// A member that is no agent.
    pub(crate) fn at(position: [u8; 32], peer: String) -> Self {
        Self { position: position.to_vec(), peer }
    }

    pub(crate) fn of(agent: &Agent) -> Self {
        let peers = agent.ask(&["peers"]);
        let position = peers["position"].as_str().expect("a key");
        let digit = |index: usize| u8::from_str_radix(&position[index..index + 2], 16).expect("hex");
        assert_eq!(position.len(), 64, "{position}");
        Self {
            position: (0..64).step_by(2).map(digit).collect(),
            peer: peers["me"]["peer"].as_str().expect("a name").to_owned(),
        }
    }
}

/// A node of the tree: the leaf of a machine, or the router of the gap above a machine, by index on the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Leaf(usize),
    Router(usize),
}

/// The places of all members, in their order on the line; two at least.
pub(crate) fn expected(members: &[Member]) -> Vec<(Member, Place)> {
    let mut line = members.to_vec();
    line.sort();
    let last = line.len() - 1;
    let prefixes: Vec<usize> =
        line.windows(2).map(|pair| common_prefix(&pair[0].position, &pair[1].position)).collect();

    // The Cartesian tree of the prefixes, the shortest on top: `stack` is the right spine of the members read so far.
    let mut children: Vec<[Node; 2]> = (0..last).map(|gap| [Node::Leaf(gap), Node::Leaf(gap + 1)]).collect();
    let mut stack: Vec<usize> = Vec::new();
    for gap in 0..last {
        while stack.last().is_some_and(|&top| prefixes[top] > prefixes[gap]) {
            children[gap][0] = Node::Router(stack.pop().expect("just seen"));
        }
        if let Some(&top) = stack.last() {
            children[top][1] = Node::Router(gap);
        }
        stack.push(gap);
    }
    let root = stack[0];

    // Down for depths and parents, and back up for sizes and heights.
    let name = |place: usize| Some(line[place].peer.clone());
    let mut places = vec![Place::default(); line.len()];
    let mut order = vec![root];
    let mut next = 0;
    places[root].depth = Some(0);
    while let Some(&gap) = order.get(next) {
        next += 1;
        let depth = places[gap].depth.map(|depth| depth + 1);
        for child in children[gap] {
            match child {
                Node::Router(below) => {
                    places[below].depth = depth;
                    places[below].router_parent = name(gap);
                    order.push(below);
                }
                Node::Leaf(below) => {
                    places[below].leaf_parent = name(gap);
                    if below == last {
                        places[below].depth = depth;
                    }
                }
            }
        }
    }
    let mut sizes = vec![(0, 0); last];
    for &gap in order.iter().rev() {
        places[gap].children = children[gap]
            .iter()
            .map(|child| {
                let (place, node, (machines, height)) = match *child {
                    Node::Leaf(place) => (place, "leaf", (1, 0)),
                    Node::Router(place) => (place, "router", sizes[place]),
                };
                Child { peer: line[place].peer.clone(), node: node.to_owned(), machines, height }
            })
            .collect();
        let below = &places[gap].children;
        sizes[gap] = (
            below.iter().map(|child| child.machines).sum(),
            1 + below.iter().map(|child| child.height).max().expect("two children"),
        );
    }
    for (index, place) in places.iter_mut().enumerate() {
        place.predecessor = index.checked_sub(1).and_then(name);
        place.successor = (index < last).then(|| name(index + 1)).flatten();
        place.is_root = index == root;
        place.root = name(root);
        (place.grid_machines, place.grid_height) = sizes[root];
    }
    line.into_iter().zip(places).collect()
}

/// Number of leading bits that two keys have in common.
fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let bit = |key: &[u8], index: usize| key[index / 8] >> (7 - index % 8) & 1;
    (0..8 * a.len()).take_while(|&index| bit(a, index) == bit(b, index)).count()
}

#[test]
fn the_oracle_draws_a_known_tree() {
    // 000…, 001…, 011…, 1…: gaps with 2, 1 and 0 bits in common; the last gap is the root.
    let member = |name: &str, first: u8| Member { position: vec![first; 32], peer: name.to_owned() };
    let members = [member("c", 0x60), member("a", 0x00), member("d", 0x80), member("b", 0x20)];
    let tree = expected(&members);
    let names: Vec<&str> = tree.iter().map(|(member, _)| member.peer.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "d"]);
    let some = |name: &str| Some(name.to_owned());
    let leaf = |name: &str| Child { peer: name.to_owned(), node: "leaf".to_owned(), machines: 1, height: 0 };
    let router = |name: &str, machines, height| Child { node: "router".to_owned(), machines, height, ..leaf(name) };
    let everywhere = Place { root: some("c"), grid_machines: 4, grid_height: 3, ..Place::default() };
    let places = [
        Place {
            successor: some("b"),
            depth: Some(2),
            router_parent: some("b"),
            leaf_parent: some("a"),
            children: vec![leaf("a"), leaf("b")],
            ..everywhere.clone()
        },
        Place {
            predecessor: some("a"),
            successor: some("c"),
            depth: Some(1),
            router_parent: some("c"),
            leaf_parent: some("a"),
            children: vec![router("a", 2, 1), leaf("c")],
            ..everywhere.clone()
        },
        Place {
            predecessor: some("b"),
            successor: some("d"),
            is_root: true,
            depth: Some(0),
            leaf_parent: some("b"),
            children: vec![router("b", 3, 2), leaf("d")],
            ..everywhere.clone()
        },
        Place { predecessor: some("c"), depth: Some(1), leaf_parent: some("c"), ..everywhere },
    ];
    assert_eq!(tree.into_iter().map(|(_, place)| place).collect::<Vec<_>>(), places);
}
