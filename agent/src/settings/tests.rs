use super::*;

fn parsed(text: &str) -> Result<Settings, SettingsError> {
    parse(Path::new("config.toml"), text)
}

fn sentence(text: &str) -> String {
    parsed(text).expect_err(text).to_string()
}

#[test]
fn defaults_need_no_file_and_shown_settings_can_be_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("config.toml");
    assert_eq!(load(&path), Ok(Settings::default()));
    let mut settings = Settings::default();
    settings.owner.idle = Span(Duration::from_secs(90));
    settings.owner.hours = vec!["22-7".parse().expect("hours")];
    settings.owner.days = vec!["mon-fri".parse().expect("days")];
    settings.limits.disk = ByteSize(3 << 30);
    assert_eq!(parsed(&settings.to_string()), Ok(settings));
}

#[test]
fn the_file_in_the_documentation_says_the_defaults() {
    let text = include_str!("../settings.rs");
    let documented: Vec<&str> = text
        .lines()
        .skip_while(|line| *line != "//! ```toml")
        .skip(1)
        .take_while(|line| *line != "//! ```")
        .map(|line| line.trim_start_matches("//!"))
        .collect();
    let documented = documented.join("\n");
    assert_eq!(parsed(&documented), Ok(Settings::default()));
    // And it has all of them.
    let shown = toml::to_string(&Settings::default()).expect("it can be shown");
    for key in shown.lines().filter_map(|line| line.split(" = ").next()).filter(|key| !key.starts_with('[')) {
        assert!(documented.contains(&format!("{key} =")), "{key} is not documented");
    }
}

#[test]
fn a_mistake_is_reported_with_its_line_and_the_allowed_values() {
    for (text, line, wanted) in [
        ("[owner]\nidle = \"soon\"", 2, "5m\"; \"soon\" is not a duration: write for example 90s, 15m, 1h30m or 2d"),
        ("[owner]\nidle = \"0.5s\"", 2, "write a duration from 1s to 1d"),
        ("[owner]\n\nidle = \"2d\"", 3, "2d is not allowed: write a duration from 1s to 1d"),
        ("[owner]\nidel = \"5m\"", 2, "unknown field `idel`, expected one of `idle`, `vacate`, `on_battery`"),
        ("[owners]", 1, "unknown field `owners`, expected one of `owner`, `limits`, `bags`, `submit`, `network`"),
        (
            "[network]\nlisten = [\"localhost\"]",
            2,
            "\"localhost\" is not an address of an agent: write for example \"0.0.0.0:4001\"",
        ),
        ("[owner]\non_battery = \"maybe\"", 2, "\"maybe\" is not allowed: write true or false"),
        ("[owner]\nhours = 22", 2, "invalid type: integer `22`, expected a text, or a list of texts"),
        ("[limits]\nslots = \"50%\"", 2, "50% is not allowed: write a whole number from 1 to 1024"),
        ("[limits]\nslots = [1]", 2, "expected one value, not a list or a table"),
        ("[owner]\nforeign_cpu_percent = 250", 2, "250 is not allowed: write a whole number from 1 to 100"),
        ("[owner]\nhours = [\"22-7\", \"late\"]", 2, "\"late\" are no hours: write for example \"22:00-07:00\""),
        ("[owner]\ndays = [\"weekend\"]", 2, "write mon, tue, wed, thu, fri, sat or sun"),
        ("[limits]\nslots = 0", 2, "0 is not allowed: write a whole number from 1 to 1024"),
        ("[limits]\ndisk = \"much\"", 2, "\"much\" is not a size: write for example 256M"),
        ("[limits]\nin_use.cpu_percent = -1", 2, "-1 is not allowed: write a whole number from 0 to 100"),
        ("[limits]\nin_use.upload = \"1K\"", 2, "1K is not allowed: write 64K or more"),
        ("[limits.idle]\ncpu_percent = 0", 2, "0 is not allowed: write a whole number from 1 to 100"),
        ("[limits]\ncheckpoint = \"1G\"", 2, "1G is not allowed: write 256M or less"),
        ("[limits]\noutput = \"1G\"", 2, "1G is not allowed: write 4K to 256M"),
        ("[limits]\ntask_time = \"0.5s\"", 2, "is not allowed: write a duration from 1s to 3650d"),
        ("[limits]\nupload = \"10K\"", 2, "10K is not allowed: write 64K or more"),
        ("[owner\n", 1, ""),
    ] {
        let sentence = sentence(text);
        let wanted = wanted.rsplit("; ").next().expect("a text");
        assert!(sentence.starts_with(&format!("config.toml line {line}: ")), "{text}: {sentence}");
        assert!(sentence.contains(wanted) && !sentence.contains('\n'), "{text}: {sentence}");
    }
}

#[test]
fn one_setting_is_set_and_the_rest_of_the_file_stays() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("new/config.toml");
    let settings = set(&path, "owner.idle", "10m").expect("it is allowed");
    assert_eq!(settings.owner.idle, Span(Duration::from_secs(600)));
    fs::write(&path, "# mine\n[owner]\nidle = \"10m\" # ten\n").expect("our file");
    set(&path, "limits.in_use.cpu_percent", "30").expect("it is allowed");
    set(&path, "owner.programs", "[\"steam\", \"obs\"]").expect("it is allowed");
    set(&path, "owner.idle", "\"4m\"").expect("with quotes, too");
    let text = fs::read_to_string(&path).expect("our file");
    assert!(text.starts_with("# mine\n[owner]\nidle = \"4m\""), "{text}");
    let settings = load(&path).expect("it is good");
    assert_eq!(settings.limits.in_use.cpu_percent.get(), 30);
    assert_eq!(settings.owner.programs, ["steam", "obs"]);
    for (key, value, wanted) in [
        (
            "owner.idle",
            "never",
            "write for example 90s, 15m, 1h30m or 2d; for example: idlewood config set owner.idle 10min",
        ),
        ("owner.idle", "07:00", "owner.idle cannot be set to 07:00: \"07:00\" is not a duration"),
        ("owner.idle.x", "1", "no setting \"owner.idle.x\"; did you mean owner.idle?"),
        ("owner.speed", "1", "no setting \"owner.speed\"; `idlewood config describe` lists all"),
        ("owner", "1", "no setting"),
        ("", "1", "no setting"),
    ] {
        let sentence = set(&path, key, value).expect_err(key).to_string();
        assert!(sentence.contains(wanted), "{key}: {sentence}");
        assert_eq!(fs::read_to_string(&path).expect("our file"), text, "{key}");
    }
    let is_set = |key: &str| is_in_file(&path).expect("it is good")(described::one(key).expect("a setting"));
    assert!(is_set("limits.in_use.cpu_percent") && !is_set("owner.vacate"));
    let settings = unset(&path, "limits.in_use.cpu_percent").expect("it can go");
    assert_eq!(settings.limits.in_use.cpu_percent.get(), 0);
    unset(&path, "owner.vacate").expect("it is not there");
    assert!(!is_set("limits.in_use.cpu_percent") && is_set("owner.idle"));
    assert!(unset(&path, "owner.vacat").expect_err("no such").to_string().contains("did you mean owner.vacate?"));
}

#[test]
fn values_are_taken_as_people_write_them() {
    let text = "[owner]\nidle = \"10 minutes\"\non_battery = \"Yes\"\nforeign_cpu_percent = \"50 %\"\nhours = \"22:00-07:00, \
                12-13\"\nprograms = \"steam\"\n[limits]\nslots = \"2\"\ndisk = \"2GB\"\nupload = \"1MB/s\"\nidle.cpu_percent = \"80%\"\n\
                [network]\nlisten = \"localhost:4001\"";
    let settings = parsed(text).expect("it is good");
    let Owner { idle, on_battery, foreign_cpu_percent, hours, programs, .. } = &settings.owner;
    assert_eq!((idle.0.as_secs(), *on_battery, foreign_cpu_percent.get(), hours.len()), (600, true, 50, 2));
    assert_eq!(programs, &["steam"]);
    let Limits { slots, disk, upload, idle, .. } = &settings.limits;
    assert_eq!(
        (slots.get(), disk.0, upload.map(|rate| rate.0), idle.cpu_percent.get()),
        (2, 2 << 30, Some(1 << 20), 80)
    );
    assert_eq!(settings.network.listen[0].to_string(), "/ip4/127.0.0.1/tcp/4001");
    assert_eq!(parsed(&settings.to_string()), Ok(settings));
}

#[test]
fn a_changed_file_counts_and_a_broken_one_does_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("config.toml");
    let mut current = Current::load(path.clone()).expect("defaults");
    assert!(!current.refresh(), "nothing has changed");
    fs::write(&path, "[owner]\nidle = \"1m\"").expect("our file");
    assert!(current.refresh());
    assert_eq!(current.get().owner.idle, Span(Duration::from_secs(60)));
    fs::write(&path, "[owner]\nidle = \"one minute\"").expect("our file");
    assert!(!current.refresh());
    assert_eq!(current.get().owner.idle, Span(Duration::from_secs(60)), "the last good one");
    assert!(matches!(current.error(), Some(SettingsError::Mistake { line: 2, .. })));
    fs::write(&path, "[owner]\nidle = '1m'").expect("our file");
    assert!(!current.refresh(), "the same settings");
    assert_eq!(current.error(), None);
    fs::remove_file(&path).expect("our file");
    assert!(current.refresh());
    assert_eq!(current.get(), &Settings::default());
    assert!(Current::load(directory.path().to_owned()).is_err(), "a directory is no file");
}

#[test]
fn limits_in_use_replace_the_others_where_they_are_set() {
    let of = |text: &str, in_use| {
        let limits = parsed(text).expect("it is good").limits;
        (limits.memory_now(in_use).map(|size| size.0 >> 20), limits.rates_now(in_use))
    };
    let rate = |mib: u64| Some(ByteSize(mib << 20));
    let usual = "[limits]\nmemory = \"4M\"\nupload = \"5M\"\ndownload = \"6M\"\n";
    assert_eq!([false, true].map(|in_use| of(usual, in_use)), [(Some(4), (rate(5), rate(6))); 2]);
    let both = format!("{usual}in_use = {{ memory = \"1M\", upload = \"7M\", download = \"3M\" }}\n");
    assert_eq!(
        [false, true].map(|in_use| of(&both, in_use)),
        [(Some(4), (rate(5), rate(6))), (Some(1), (rate(7), rate(3)))]
    );
    let one = "[limits]\nin_use.download = \"2M\"\n";
    assert_eq!([false, true].map(|in_use| of(one, in_use)), [(None, (None, None)), (None, (None, rate(2)))]);
}
