//! Measurements: what messages, blobs and an idle network cost.

use super::*;

/// Resident memory of this process, in KiB.
fn resident_kib() -> u64 {
    let text = std::fs::read_to_string(Path::new("/proc/self/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// `cargo test --release -p idlewood --lib net:: -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn measure() {
    let (a, mut b) = (Node::start().await, Node::start().await);
    a.net.send(&b.contact, vec![0]);
    b.message().await;
    for size in [100, 1000, 10_000] {
        const COUNT: u32 = 20_000;
        let start = Instant::now();
        let (net, contact) = (a.net.clone(), b.contact.clone());
        let base = net.counters();
        let sender = tokio::spawn(async move {
            for number in 0..COUNT {
                net.send(&contact, vec![1; size]);
                while u64::from(number + 1) > net.counters().messages_sent - base.messages_sent + 500 {
                    tokio::time::sleep(Duration::from_micros(200)).await;
                }
            }
        });
        for _ in 0..COUNT {
            b.message().await;
        }
        sender.await.unwrap();
        println!(
            "{size} B: {:.0} messages/s, dropped {}",
            f64::from(COUNT) / start.elapsed().as_secs_f64(),
            a.net.counters().messages_dropped
        );
    }
    let mut latencies = Vec::new();
    for _ in 0..2000 {
        let start = Instant::now();
        a.net.send(&b.contact, vec![0; 200]);
        b.message().await;
        latencies.push(start.elapsed());
    }
    latencies.sort_unstable();
    println!("one way: median {:?}, 99 % {:?}", latencies[1000], latencies[1980]);
    let content = vec![7; 50 << 20];
    let hash = a.lend(&content);
    let fetcher = Fetcher::new(b.blobs.clone(), b.net.clone(), tokio::sync::mpsc::channel(1).0);
    let start = Instant::now();
    fetcher.fetch(hash, 1 << 30, &origin(vec![a.contact.clone()])).await.unwrap();
    println!("50 MiB blob: {:.0} MiB/s", 50.0 / start.elapsed().as_secs_f64());
    drop(content);
}

/// Apart from the other measurement, whose freed memory would hide this one's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn measure_memory() {
    let _first = Node::start().await;
    let before = resident_kib();
    let mut nodes = Vec::new();
    for _ in 0..50 {
        nodes.push(Node::start().await);
    }
    for index in 0..50 {
        for step in [1, 2] {
            let to = nodes[(index + step) % 50].contact.clone();
            nodes[index].net.send(&to, vec![0; 500]);
        }
    }
    until("the ring", || nodes.iter().all(|node| node.net.counters().messages_received == 2)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    println!("{} KiB per agent's network with four connections", (resident_kib() - before) / 50);
}
