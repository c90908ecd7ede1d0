//! Whether the machine runs on its battery: `/sys/class/power_supply`.

use std::fs;
use std::path::Path;

use super::sensed::Unavailable;

/// The kernel's directory of supplies.
pub const POWER_SUPPLY: &str = "/sys/class/power_supply";

/// Whether the machine runs on a battery or an uninterruptible supply that the mains do not feed.
///
/// It does where such a supply discharges and no mains adapter is online: some batteries "discharge" on weak adapters,
/// and the batteries of mice and headsets say nothing about the machine.
///
/// # Errors
/// When there is no battery.
pub fn on_battery(power_supply: &Path) -> Result<bool, Unavailable> {
    let read = |path: &Path, name: &str| fs::read_to_string(path.join(name)).map(|text| text.trim().to_owned()).ok();
    let supplies = fs::read_dir(power_supply).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut has_battery = false;
    let mut discharges = false;
    let mut has_mains = false;
    for supply in supplies {
        match read(&supply, "type").as_deref() {
            Some("Battery" | "UPS") if read(&supply, "scope").as_deref() != Some("Device") => {
                has_battery = true;
                discharges |= read(&supply, "status").as_deref() == Some("Discharging");
            }
            Some("Mains" | "USB" | "USB_C" | "USB_PD" | "Wireless") => {
                has_mains |= read(&supply, "online").is_some_and(|online| online != "0");
            }
            _ => {}
        }
    }
    if has_battery { Ok(discharges && !has_mains) } else { Err(Unavailable::absent("this machine has no battery")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Supplies as directories of files, each with a last line break, as the kernel writes them.
    fn supplies(list: &[(&str, &[(&str, &str)])]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for (name, files) in list {
            let directory = root.path().join(name);
            fs::create_dir(&directory).expect("a directory");
            for (file, content) in *files {
                fs::write(directory.join(file), format!("{content}\n")).expect("a file");
            }
        }
        root
    }

    #[test]
    fn a_battery_that_discharges_without_mains_is_what_the_machine_runs_on() {
        let discharging: (&str, &[_]) = ("BAT0", &[("type", "Battery"), ("status", "Discharging"), ("capacity", "81")]);
        let full: (&str, &[_]) = ("BAT0", &[("type", "Battery"), ("status", "Full")]);
        let plugged: (&str, &[_]) = ("AC", &[("type", "Mains"), ("online", "1")]);
        let unplugged: (&str, &[_]) = ("AC", &[("type", "Mains"), ("online", "0")]);
        let mouse: (&str, &[_]) =
            ("hidpp_battery_0", &[("type", "Battery"), ("scope", "Device"), ("status", "Discharging")]);
        let second: (&str, &[_]) = ("BAT1", &[("type", "Battery"), ("status", "Unknown")]);
        let ups: (&str, &[_]) = ("ups", &[("type", "UPS"), ("status", "Discharging")]);
        for (list, expected) in [
            (vec![discharging, unplugged], Some(true)),
            (vec![discharging], Some(true)),
            (vec![discharging, second, unplugged], Some(true)),
            (vec![discharging, plugged], Some(false)),
            (vec![full, plugged], Some(false)),
            (vec![full, unplugged], Some(false)),
            (vec![ups, unplugged], Some(true)),
            (vec![mouse, plugged], None),
            (vec![mouse], None),
            (vec![], None),
        ] {
            let root = supplies(&list);
            assert_eq!(on_battery(root.path()).ok(), expected, "{list:?}");
        }
        assert!(on_battery(Path::new("/nowhere")).is_err());
    }
}
