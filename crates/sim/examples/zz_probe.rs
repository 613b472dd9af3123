//! probe
use kofm_core::protocols::permission::Permission;
use kofm_core::protocols::roaming::Roaming;
use kofm_core::{Cluster, SiteId};
use kofm_sim::seeded::{Blind, Setup, run};
use kofm_sim::span::Span;
fn main() {
    let a: Vec<f64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let (n, m, load, k0, k1) = (a[0] as u16, a[1] as u32, a[2], a[3] as u32, a[4] as u32);
    let mut setup = Setup::new(Cluster::new(n, m));
    setup.k = (k0, k1);
    let mean = f64::from(k0 + k1) / 2.0;
    let nn = f64::from(n);
    let clients = (f64::from(m) * 10.0 / 3.0 / nn).round().max(1.0);
    let think = clients * nn * 5.0 * mean / (load * f64::from(m));
    setup.requests = 24000;
    setup.hold = Span::Exponential(5.0);
    setup.clients = clients as u32;
    setup.think = Span::Exponential(think);
    setup.wander = a.get(5).is_none();
    let _ = SiteId(0);
    let r = run::<Roaming, _>(&setup, &mut Blind);
    let p = run::<Permission, _>(&setup, &mut Blind);
    for r in [&p, &r] {
        let w = r.wait_mean();
        let x = clients * nn / (w + think + 5.0);
        let used = x * mean * 5.0;
        println!("msgs {:.2} wait {:.2} used {:.2}/{m} idle per use {:.2} over {}", r.messages_per_grant().mean, w, used, (f64::from(m) - used) / (x * mean), r.overtaken_max);
    }

    let acc = kofm_sim::seeded::ACC.lock().unwrap();
    let names = ["used","idle-needy","idle-desk","idle-wants","idle-else","held","wants","guests","due","needs"];
    let mut owned = 0.0;
    for i in 0..10 { print!("{} {:.2}  ", names[i], acc[i]/acc[10]); if i < 5 { owned += acc[i]/acc[10]; } }
    println!("transit {:.2}", f64::from(m) - owned);
    println!("ratio {:.2}", r.wait_mean() / p.wait_mean());
}
