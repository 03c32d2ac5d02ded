//! The page of a large plan, opened by a browser where there is one.

use std::fs;
use std::path::Path;
use std::process::Command;

use fleetwright::render;

use crate::large::large;

/// Where Debian, and others after it, put the browser.
const BROWSERS: [&str; 2] = ["/usr/bin/chromium", "/usr/bin/chromium-browser"];

#[test]
fn a_browser_opens_the_page_of_five_thousand_nodes_without_a_complaint() {
    let page = render::html(&large().expect("a saved plan"));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("plan.html");
    fs::write(&file, page).expect("written");
    let Some(browser) = BROWSERS.iter().find(|path| Path::new(path).exists()) else {
        eprintln!("not opened: there is none of {}", BROWSERS.join(", "));
        return;
    };
    let opened = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--enable-logging=stderr", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("file://{}", file.display()))
        .output()
        .expect("the browser runs");
    let (dom, log) =
        (String::from_utf8_lossy(&opened.stdout), String::from_utf8_lossy(&opened.stderr));
    let complaints: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
    assert_eq!(dom.matches("<tr data-text").count(), 1_000 + 4, "each removal, and the workloads");
    // The script ran: what needs it is shown.
    assert!(!dom.contains("data-script=\"\" hidden"), "the search is not shown");
}
