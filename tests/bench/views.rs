//! Measures views of a plan over 5,000 nodes that removes 1,000 of them.
//! `cargo bench --bench plan -- views` measures this alone.

use std::time::Instant;

use fleetwright::render;

use crate::large::large;

/// Prints how long each view takes, and how large it is.
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
    Ok(())
}
