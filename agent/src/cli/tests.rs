use clap::CommandFactory as _;

use super::*;

fn arguments(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn parse(line: &str) -> Result<(Cli, Option<Lists>), clap::Error> {
    let (arguments, entries) = split_entries(arguments(line));
    Ok((Cli::try_parse_from(arguments)?, entries.unwrap()))
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

/// What stands below the options is not broken by clap where it should be: lists and examples fit 80 columns, and sentences are broken by
/// clap alone, wherever the terminal ends.
#[test]
fn help_fits_terminals() {
    fn all(command: &clap::Command) -> Vec<&clap::Command> {
        std::iter::once(command).chain(command.get_subcommands().flat_map(all)).collect()
    }
    let whole = Cli::command();
    let mut examples = 0;
    for command in all(&whole) {
        for text in [command.get_after_help(), command.get_after_long_help()].into_iter().flatten() {
            let text = text.to_string();
            examples += text.matches("Examples:").count();
            let lines: Vec<&str> = text.lines().collect();
            for line in lines.iter().filter(|line| line.starts_with(' ')) {
                assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
            let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
            let broken = lines.windows(2).find(|pair| is_prose(pair[0]) && is_prose(pair[1]));
            assert_eq!(broken, None, "{}", command.get_name());
        }
    }
    assert!(examples >= 10, "{examples}");
}

#[test]
fn every_verb_is_understood() {
    for line in [
        "idlewood run",
        "idlewood run --state-dir d --listen /ip4/127.0.0.1/tcp/0 --bootstrap /ip4/127.0.0.1/tcp/1 --slots 2",
        "idlewood run --speed-mops 12.5 --owner-probe f --die-with-parent --lease 5 --control-port 0",
        "idlewood submit bag.toml --wait",
        "idlewood submit --program p.wasm --array 0-9 -- render {} --fast",
        "idlewood submit --program p.wasm --env A=1 --env B=2 --success-codes 0,10,20 --time-limit 1h --work 5",
        "idlewood submit --program p.wasm ::: a --wait -- b",
        "idlewood bag list",
        "idlewood bag show",
        "idlewood bag watch last --output json",
        "idlewood bag wait ab12 --progress",
        "idlewood bag cancel ab12",
        "idlewood bag cancel all",
        "idlewood bag priority ab12 -5",
        "idlewood bag priority ab12 cd34 night 7",
        "idlewood bag hold ab12 cd34 night",
        "idlewood bag release last",
        "idlewood bag rename last new",
        "idlewood bag wait ab12 cd34",
        "idlewood bag tasks sweep --failed --limit 5",
        "idlewood bag list --state open,failed --since 2h --limit 10 --before ab12",
        "idlewood submit --program p.wasm --hold --after a,b --max-running 3 --retry-on 75 --notify true",
        "idlewood bag logs --index 3,5 --stderr",
        "idlewood bag logs ab12 cd34 0-9",
        "idlewood bag tasks ab12 all --failed",
        "idlewood bag rerun ab12 cd34 --index 3,5-9",
        "idlewood bag explain all",
        "idlewood bag feed last",
        "idlewood submit --program p.wasm --endless --watch in -- {}",
        "idlewood bag get ab12 --out d --index 0-9",
        "idlewood --output json status",
        "idlewood peers --state-dir d",
        "idlewood pause --for 1h30m",
        "idlewood resume",
        "idlewood finish",
        "idlewood doctor --output json",
        "idlewood config show --config f",
        "idlewood config set owner.idle 10m",
        "idlewood config path",
        "idlewood config describe",
        "idlewood config describe limits",
        "idlewood config get owner.idle",
        "idlewood config unset owner.idle",
        "idlewood run --listen localhost:4001 --bootstrap lab-pc:4001",
        "idlewood grid join",
        "idlewood grid join -",
        "idlewood grid join FILE",
        "idlewood demo --agents 3 --tasks 16 --seed 7 --out d",
        "idlewood bench",
        "idlewood bench --tasks 500 --task 5ms --agents 2 --output json",
        "idlewood completions bash",
        "idlewood completions zsh",
        "idlewood completions fish",
        "idlewood man",
        "idlewood man --dir d",
        "idlewood worker",
    ] {
        assert!(parse(line).is_ok(), "{line}: {}", parse(line).unwrap_err());
    }
}

#[test]
fn bad_usage_is_told() {
    for line in [
        "idlewood",
        "idlewood fly",
        "idlewood run --slots 0",
        "idlewood run --listen nowhere",
        "idlewood run --speed-mops 0",
        "idlewood submit --program p.wasm --array 9-0",
        "idlewood submit --array 1 --glob *",
        "idlewood submit --watch in",
        "idlewood bag feed",
        "idlewood bag rerun --failed",
        "idlewood submit --memory lots",
        "idlewood submit --success-codes a",
        "idlewood config",
        "idlewood config set owner.idle",
        "idlewood bag cancel",
        "idlewood bag list --state done",
        "idlewood bag list --since yesterday",
        "idlewood bag tasks --state lost",
        "idlewood bag tasks --failed --state placed",
        "idlewood submit --retry-on 256",
        "idlewood bag get --index x",
        "idlewood pause --for yesterday",
        "idlewood demo --agents 2",
        "idlewood status --output xml",
        "idlewood completions",
        "idlewood completions csh",
    ] {
        let error = parse(line).map(|_| line).unwrap_err();
        assert_eq!(error.exit_code(), i32::from(BAD_USAGE), "{line}");
    }
}

#[test]
fn entries_follow_three_colons() {
    let (cli, entries) = parse("idlewood submit --program p.wasm -- x {} ::: a --wait -- b").unwrap();
    assert_eq!(entries.unwrap(), Lists::of(["a", "--wait", "--", "b"]));
    assert!(matches!(cli.command, Command::Submit(_)));
    assert_eq!(split_entries(arguments("idlewood submit :::")).1.unwrap(), Some(Lists::of(Vec::<String>::new())));
    assert_eq!(split_entries(arguments("idlewood submit")).1.unwrap(), None);
    let lists = |line| split_entries(arguments(line)).1.map(|lists| lists.unwrap().0);
    let (words, file) = (|word: &str| List::Values(vec![word.to_owned()]), |path: &str| List::File(path.into()));
    assert_eq!(lists("submit -- x ::: a ::: b").unwrap(), [words("a"), words("b")]);
    assert_eq!(lists("submit :::: f g ::: b").unwrap(), [file("f"), file("g"), words("b")]);
    for line in ["submit ::: a :::+ b", "submit ::::", "submit :::: ::: a", "submit ::: a ::::"] {
        assert!(lists(line).is_err(), "{line}");
    }
    let (cli, entries) = parse("idlewood resume ::: a").unwrap();
    assert!(dispatch(cli, entries).unwrap_err().is::<BadUsage>());
}

#[test]
fn json_is_wanted_even_when_the_rest_makes_no_sense() {
    assert_eq!(wanted_format(&arguments("idlewood fly --output json")), Format::Json);
    assert_eq!(wanted_format(&arguments("idlewood --output=json fly")), Format::Json);
    assert_eq!(wanted_format(&arguments("idlewood submit -- --output json")), Format::Text);
    assert_eq!(wanted_format(&arguments("idlewood --output text")), Format::Text);
}

#[test]
fn causes_are_told_once() {
    let source = io::Error::other("disk on fire");
    let error = anyhow::Error::new(source).context("cannot write x: disk on fire").context("cannot go on");
    assert_eq!(sentence(&error), "cannot go on: cannot write x: disk on fire");
}

#[test]
fn a_state_directory_is_what_was_given() {
    assert_eq!(state_dir(Some("d".into())).unwrap(), PathBuf::from("d"));
    assert!(state_dir(Some(PathBuf::new())).is_err());
}

#[test]
fn clap_is_quoted_in_one_line() {
    let sentence = |line: &str| usage_sentence(&parse(line).map(|_| ()).unwrap_err());
    assert_eq!(sentence("idlewood fly"), "unrecognized subcommand 'fly'");
    assert_eq!(sentence("idlewood bag cancel"), "the following required arguments were not provided: <BAG>...");
}
