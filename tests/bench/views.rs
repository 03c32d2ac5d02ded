//! Measures views of a plan over 5,000 nodes that removes 1,000 of them.
//! Run it alone with `cargo bench --bench plan -- views`.

use std::time::Instant;

use fleetwright::plan::Plan;
use fleetwright::render;

use crate::browser::{Viewport, open};
use crate::large::large;

/// Prints the duration and the size of each view.
#[expect(clippy::print_stdout, reason = "a benchmark prints its table")]
pub(crate) fn rows() -> anyhow::Result<()> {
    let plan = large()?;
    let views: [(&str, &dyn Fn() -> String); 6] = [
        ("text", &|| render::text(&plan, &render::TextStyle::default())),
        ("markdown", &|| render::markdown(&plan, render::MarkdownStyle::default())),
        ("json", &|| plan.to_json()),
        ("html", &|| render::html(&plan)),
        ("stream", &|| render::stream(&plan)),
        ("github", &|| render::github(&plan)),
    ];
    println!("{:<10} {:>10} {:>12}", "view", "ms", "characters");
    for (name, view) in views {
        let mut times: Vec<_> = (0..super::RUNS)
            .map(|_| {
                let begun = Instant::now();
                (view().chars().count(), begun.elapsed())
            })
            .collect();
        times.sort_by_key(|(_, time)| *time);
        let (characters, time) = times[times.len() / 2];
        println!("{name:<10} {:>10} {characters:>12}", time.as_millis());
    }
    browser_load(&plan)
}

/// Prints the time that a browser takes to load and lay out the page.
#[expect(clippy::print_stdout, reason = "a benchmark prints its table")]
fn browser_load(plan: &Plan) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("plan.html");
    std::fs::write(&file, render::html(plan))?;
    let mut times = Vec::new();
    for _ in 0..super::RUNS {
        let Some(shown) = open(&format!("file://{}", file.display()), Viewport::DESK) else {
            return Ok(());
        };
        shown.ask("document.body.getBoundingClientRect().height")?;
        let loaded = "Math.round(performance.getEntriesByType('navigation')[0].loadEventEnd)";
        times.push(shown.ask(loaded)?.parse::<u32>()?);
    }
    times.sort_unstable();
    println!("{:<10} {:>10}", "opened", times[times.len() / 2]);
    Ok(())
}
