//! Files of a package do not import each other in a circle: what two files share lies in a third one below both.
//!
//! What counts: a production file *imports* another file of its package where it names something that the other file defines, in a
//! `use` or by a path (`crate::…`, `super::…`, a child's name) in a type, an expression or the arguments of a macro. A name that a
//! file imports or re-exports belongs to the file that defines it. So a `lib.rs` or module file that only declares its children and
//! re-exports what they define imports nothing; one that uses what its children define imports them, and none of them may import
//! it.
//!
//! Left out: files of tests and items for tests alone (`cfg(test)`); methods, which are called without naming the file that defines
//! them; paths in comments, attributes and patterns of `macro_rules!`; benches, examples, build scripts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// Files that still import each other in circles, by the beginnings of their paths, and why.
const STILL_IN_CIRCLES: [(&str, &str); 1] = [(
    "scheduler/src",
    "parts of the peer, the ledger and the executor are methods of them, and encodings share their rows",
)];

/// A path of names from the root of a package, or of one of its binaries.
type Names = Vec<String>;

/// A production file, which is a module, with the modules inside of it.
#[derive(Debug, Default)]
struct File {
    /// From the root of the repository.
    path: String,
    /// Names that it defines.
    defines: BTreeSet<String>,
    /// Names that it imports or re-exports from this package, and where from.
    brings: BTreeMap<String, Names>,
    /// Modules of which it imports or re-exports all names.
    brings_all: Vec<Names>,
    /// What it names.
    names: BTreeSet<Names>,
}

/// The files of a library or a binary, by their modules.
type Files = BTreeMap<Names, File>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the repository").to_owned()
}

/// The directories of the workspace's packages.
fn packages() -> Vec<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace has a manifest");
    let members =
        manifest.split_once("members = [").and_then(|(_, rest)| rest.split_once(']')).expect("it has members").0;
    members.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The roots of a package's library and binaries.
fn roots(package: &str) -> Vec<String> {
    let source = format!("{package}/src");
    let own = ["lib.rs", "main.rs"].map(|name| format!("{source}/{name}"));
    let binaries = fs::read_dir(root().join(&source).join("bin")).into_iter().flatten().flatten();
    let binaries = binaries.map(|entry| format!("{source}/bin/{}", entry.file_name().to_string_lossy()));
    own.into_iter().chain(binaries).filter(|file| root().join(file).is_file()).collect()
}

/// Whether something is compiled for tests alone.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = attribute.path().is_ident("cfg").then(|| attribute.parse_args::<syn::Meta>().ok()).flatten();
        condition.is_some_and(|condition| match condition {
            syn::Meta::Path(path) => path.is_ident("test"),
            syn::Meta::List(list) => {
                let all = list.parse_args_with(Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated);
                list.path.is_ident("all") && all.is_ok_and(|all| all.iter().any(|one| one.path().is_ident("test")))
            }
            syn::Meta::NameValue(_) => false,
        })
    })
}

/// Reads the file of a module and those of its children.
fn read(path: &Path, module: &[String], files: &mut Files) {
    let text = fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let stem = path.file_stem().unwrap_or_default();
    let directory = path.parent().unwrap_or(Path::new(""));
    let is_root = module.is_empty() || stem == "mod";
    let children = if is_root { directory.to_owned() } else { directory.join(stem) };
    let file = File { path: path.display().to_string(), ..File::default() };
    let mut reader = Reader {
        file,
        module: module.to_vec(),
        children: vec![children],
        found: Vec::new(),
        declared: vec![declared(&syntax.items)],
    };
    reader.visit_file(&syntax);
    files.insert(module.to_vec(), reader.file);
    for (module, path) in reader.found {
        read(&path, &module, files);
    }
}

/// Names of the modules among these items.
fn declared(items: &[Item]) -> BTreeSet<String> {
    let name = |item: &Item| if let Item::Mod(module) = item { Some(module.ident.to_string()) } else { None };
    items.iter().filter_map(name).collect()
}

/// The name that an item defines beside modules.
fn defined(item: &Item) -> Option<String> {
    Some(match item {
        Item::Const(item) => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        Item::Fn(item) => item.sig.ident.to_string(),
        Item::Macro(item) => item.ident.as_ref()?.to_string(),
        Item::Static(item) => item.ident.to_string(),
        Item::Struct(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::Type(item) => item.ident.to_string(),
        Item::Union(item) => item.ident.to_string(),
        _ => return None,
    })
}

/// Goes through one file.
struct Reader {
    file: File,
    /// The module that is read: the file's, or one inside of it.
    module: Names,
    /// Where files of child modules lie, for each such module.
    children: Vec<PathBuf>,
    /// Modules declared in each of them.
    declared: Vec<BTreeSet<String>>,
    /// Child modules with files of their own.
    found: Vec<(Names, PathBuf)>,
}

impl Reader {
    /// A path of this package from its root; `None`: it leads elsewhere.
    fn absolute(&self, path: &[String]) -> Option<Names> {
        let (first, rest) = path.split_first()?;
        let mut from = self.module.clone();
        match first.as_str() {
            "crate" => from.clear(),
            "self" => {}
            "super" => drop(from.pop()),
            child if self.declared.last().is_some_and(|declared| declared.contains(child)) => {
                from.push(child.to_owned())
            }
            _ => return None,
        }
        for name in rest {
            if name == "super" { drop(from.pop()) } else { from.push(name.clone()) }
        }
        Some(from)
    }

    fn visit_use(&mut self, tree: &UseTree, before: &mut Names, is_reexport: bool) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.visit_use(&path.tree, before, is_reexport);
                before.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.visit_use(tree, before, is_reexport)),
            UseTree::Name(name) => self.bring(before, &name.ident, &name.ident, is_reexport),
            UseTree::Rename(name) => self.bring(before, &name.ident, &name.rename, is_reexport),
            UseTree::Glob(_) => {
                if let Some(path) = self.absolute(before) {
                    self.name(path.clone(), is_reexport);
                    self.file.brings_all.push(path);
                }
            }
        }
    }

    /// The file imports or re-exports a name, as another perhaps.
    fn bring(&mut self, before: &[String], name: &syn::Ident, known_as: &syn::Ident, is_reexport: bool) {
        let mut path = before.to_vec();
        let known_as = if name == "self" { path.last().cloned() } else { Some(known_as.to_string()) };
        if name != "self" {
            path.push(name.to_string());
        }
        if let (Some(path), Some(known_as)) = (self.absolute(&path), known_as) {
            self.name(path.clone(), is_reexport);
            self.file.brings.insert(known_as, path);
        }
    }

    /// The file names this, unless it only re-exports what a child defines.
    fn name(&mut self, path: Names, is_reexport: bool) {
        if !(is_reexport && path.starts_with(&self.module)) {
            self.file.names.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Const(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Trait(item) => &item.attrs,
            Item::Type(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_for_tests(attributes) {
            self.file.defines.extend(defined(item));
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let name = item.ident.to_string();
        let children = self.children.last().expect("the file's own").clone();
        self.module.push(name.clone());
        match &item.content {
            Some((_, items)) => {
                self.children.push(children.join(&name));
                self.declared.push(declared(items));
                items.iter().for_each(|item| self.visit_item(item));
                self.declared.pop();
                self.children.pop();
            }
            None => {
                let beside = children.join(format!("{name}.rs"));
                let inside = children.join(&name).join("mod.rs");
                let path = if root().join(&beside).is_file() { beside } else { inside };
                self.found.push((self.module.clone(), path));
            }
        }
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.visit_use(&item.tree, &mut Vec::new(), !matches!(item.vis, Visibility::Inherited));
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let for_tests = if let syn::ImplItem::Fn(function) = item { is_for_tests(&function.attrs) } else { false };
        if !for_tests {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.len() > 1
            && path.leading_colon.is_none()
            && let Some(path) = self.absolute(&names)
        {
            self.file.names.insert(path);
        }
        visit::visit_path(self, path);
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        visit::visit_path(self, &call.path);
        let arguments = call.parse_body_with(Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated);
        arguments.iter().flatten().for_each(|argument| self.visit_expr(argument));
    }
}

/// The file that defines what a path names, and the name.
fn definer(files: &Files, path: &[String], depth: usize) -> Option<(Names, String)> {
    let length = (0..=path.len()).rev().find(|&length| files.contains_key(&path[..length]))?;
    let (module, rest) = path.split_at(length);
    let file = &files[module];
    let Some((name, rest)) = rest.split_first() else { return Some((module.to_vec(), "itself".to_owned())) };
    if depth > 0 && !file.defines.contains(name) {
        let brings = file.brings.get(name).map(|from| [from, rest].concat());
        let from_all = file.brings_all.iter().map(|from| [from, std::slice::from_ref(name), rest].concat());
        for path in brings.into_iter().chain(from_all) {
            let found = definer(files, &path, depth - 1);
            if let Some((module, name)) =
                found.filter(|(module, name)| name == "itself" || files[module].defines.contains(name))
            {
                return Some((module, name));
            }
        }
    }
    Some((module.to_vec(), name.clone()))
}

/// What each file imports, by the file that defines it.
type Imports = BTreeMap<Names, BTreeMap<Names, BTreeSet<String>>>;

fn imports(files: &Files) -> Imports {
    let mut imports = Imports::new();
    for (module, file) in files {
        let of_file = imports.entry(module.clone()).or_default();
        for (from, name) in file.names.iter().filter_map(|path| definer(files, path, 16)) {
            if from != *module {
                of_file.entry(from).or_default().insert(name);
            }
        }
    }
    imports
}

/// All modules that a module imports, itself or by others.
fn reached<'a>(imports: &'a Imports, from: &'a Names) -> BTreeSet<&'a Names> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        next.extend(imports[module].keys().filter(|other| reached.insert(*other)));
    }
    reached
}

/// Groups of modules that import each other in circles.
fn circles(imports: &Imports) -> BTreeSet<BTreeSet<&Names>> {
    let reached: BTreeMap<&Names, BTreeSet<&Names>> =
        imports.keys().map(|module| (module, reached(imports, module))).collect();
    let in_circles = reached.iter().filter(|(module, others)| others.contains(*module));
    in_circles
        .map(|(module, others)| others.iter().copied().filter(|other| reached[other].contains(module)).collect())
        .collect()
}

/// A circle as the imports that make it, one a line, and its files.
fn described(files: &Files, imports: &Imports, circle: &BTreeSet<&Names>) -> (String, Vec<String>) {
    let mut lines = String::new();
    for module in circle {
        for (from, names) in imports[*module].iter().filter(|(from, _)| circle.contains(from)) {
            let names = names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            writeln!(lines, "  {} -> {}: {names}", files[*module].path, files[from].path).expect("it is a string");
        }
    }
    (lines, circle.iter().map(|module| files[*module].path.clone()).collect())
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let (mut new, mut excused, mut seen) = (String::new(), BTreeSet::new(), 0);
    for root in packages().iter().flat_map(|package| roots(package)) {
        let mut files = Files::new();
        read(Path::new(&root), &[], &mut files);
        seen += files.len();
        let imports = imports(&files);
        for circle in circles(&imports) {
            let (lines, paths) = described(&files, &imports, &circle);
            let excuse =
                |path: &String| STILL_IN_CIRCLES.iter().map(|(begin, _)| *begin).find(|begin| path.starts_with(begin));
            let excuses: Option<Vec<&str>> = paths.iter().map(excuse).collect();
            match excuses {
                Some(excuses) => excused.extend(excuses),
                None => writeln!(new, "{} files:\n{lines}", paths.len()).expect("it is a string"),
            }
        }
    }
    assert!(seen > 200, "the packages have files: {seen}");
    assert!(
        new.is_empty(),
        "files import each other in a circle; move what two of them share into a file of its own below both:\n{new}"
    );
    let is_stale = |begin: &&str| !excused.contains(begin);
    let stale: Vec<&str> = STILL_IN_CIRCLES.iter().map(|(begin, _)| *begin).filter(is_stale).collect();
    assert!(stale.is_empty(), "these have no circles any more; take them off the list: {stale:?}");
}

/// The circles among these files, as they are told.
fn told(files: &[(&str, &str)]) -> String {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (name, text) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().expect("it is in the directory")).expect("a new directory");
        fs::write(path, text).expect("a new file");
    }
    let mut read_files = Files::new();
    read(&directory.path().join("lib.rs"), &[], &mut read_files);
    let imports = imports(&read_files);
    let circles = circles(&imports);
    let lines = circles.iter().map(|circle| described(&read_files, &imports, circle).0).collect::<String>();
    lines.replace(&format!("{}/", directory.path().display()), "")
}

#[test]
fn a_circle_is_told_with_the_names_that_make_it() {
    let lib = "mod low; mod one; mod two; pub use low::Shared; pub use one::One;";
    let (low, one) = ("pub struct Shared;", "use crate::Shared; use crate::two::Two; pub struct One(Two, Shared);");
    let fine = "pub struct Two; #[cfg(test)] mod tests { use crate::One; }";
    assert_eq!(told(&[("lib.rs", lib), ("low.rs", low), ("one.rs", one), ("two.rs", fine)]), "");
    // By what another file re-exports, in the arguments of a macro.
    let two = "pub struct Two; fn two() { assert!(crate::One::is_one()); }";
    let circle = "  one.rs -> two.rs: Two\n  two.rs -> one.rs: One\n";
    assert_eq!(told(&[("lib.rs", lib), ("low.rs", low), ("one.rs", one), ("two.rs", two)]), circle);
    // A parent that uses what its child defines, by the child's name.
    let (lib, parent) = ("mod parent;", "mod child; pub struct Of; fn make() { child::make(Of); }");
    let child = "pub fn make(of: super::Of) {}";
    let circle = "  parent.rs -> parent/child.rs: make\n  parent/child.rs -> parent.rs: Of\n";
    assert_eq!(told(&[("lib.rs", lib), ("parent.rs", parent), ("parent/child.rs", child)]), circle);
}
