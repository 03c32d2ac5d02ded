//! A real browser, where there is one: it opens pages, waits, types, and says what it complains of.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use headless_chrome::protocol::cdp::types::Event;
use headless_chrome::protocol::cdp::{Emulation, Page};
use headless_chrome::{Browser, LaunchOptions, Tab};

/// Where Debian, and others after it, put the browser.
const BROWSERS: [&str; 3] =
    ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
/// How long a page may take to do what is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// A page as a browser shows it.
pub(crate) struct BrowserPage {
    tab: Arc<Tab>,
    complaints: Arc<Mutex<Vec<String>>>,
    look: Viewport,
    // The browser ends with it.
    _browser: Browser,
}

/// How a page is looked at.
#[derive(Clone, Copy)]
pub(crate) struct Viewport {
    /// In CSS pixels.
    pub(crate) width: u32,
    pub(crate) dark: bool,
}

impl Viewport {
    /// A desk in daylight.
    pub(crate) const DESK: Self = Self { width: 1_280, dark: false };
}

/// Opens a page and waits until it has loaded; `None`, with the reason on stderr, where there is no
/// browser.
pub(crate) fn open(url: &str, look: Viewport) -> Option<BrowserPage> {
    let Some(path) = BROWSERS.iter().map(PathBuf::from).find(|path| path.exists()) else {
        // Nobody may be listening.
        let _ = writeln!(std::io::stderr(), "not run: there is none of {}", BROWSERS.join(", "));
        return None;
    };
    Some(BrowserPage::open(path, url, look).unwrap_or_else(|error| panic!("{url}: {error:#}")))
}

impl BrowserPage {
    fn open(path: PathBuf, url: &str, look: Viewport) -> anyhow::Result<Self> {
        let options = LaunchOptions::default_builder()
            .path(Some(path))
            // Containers run tests as root.
            .sandbox(false)
            // Of a page that is waited for there may be nothing to hear for long.
            .idle_browser_timeout(PATIENCE * 4)
            .build()?;
        let browser = Browser::new(options).context("the browser does not start")?;
        let tab = browser.new_tab()?;
        tab.set_default_timeout(PATIENCE);
        let complaints = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&complaints);
        tab.add_event_listener(Arc::new(move |event: &Event| {
            if let (Some(complaint), Ok(mut heard)) = (complaint(event), heard.lock()) {
                heard.push(complaint);
            }
        }))?;
        tab.enable_log()?.enable_runtime()?;
        let theme = if look.dark { "dark" } else { "light" };
        tab.call_method(Emulation::SetEmulatedMedia {
            media: None,
            features: Some(vec![Emulation::MediaFeature {
                name: "prefers-color-scheme".into(),
                value: theme.into(),
            }]),
        })?;
        tab.call_method(window(look.width, 900))?;
        tab.navigate_to(url)?.wait_until_navigated()?;
        Ok(Self { tab, complaints, look, _browser: browser })
    }

    /// Returns what the console of the page shows, and scripts that failed.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.complaints.lock().map(|heard| heard.clone()).unwrap_or_default()
    }

    /// Returns the document as it stands.
    pub(crate) fn document(&self) -> anyhow::Result<String> {
        self.tab.get_content()
    }

    /// Waits until the document holds a text.
    pub(crate) fn wait_for(&self, text: &str) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let document = self.document()?;
            if document.contains(text) {
                return Ok(());
            }
            anyhow::ensure!(begun.elapsed() < PATIENCE, "`{text}` did not come:\n{document}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns what an expression is in the page, as text.
    pub(crate) fn ask(&self, expression: &str) -> anyhow::Result<String> {
        let answer = self.tab.evaluate(&format!("String({expression})"), true)?;
        let text = answer.value.as_ref().and_then(|value| value.as_str());
        text.map(str::to_owned).with_context(|| format!("{expression}: {answer:?}"))
    }

    /// Presses a key, as one who sits before it would.
    pub(crate) fn press(&self, key: &str) -> anyhow::Result<()> {
        self.tab.press_key(key).map(|_| ()).with_context(|| format!("the key {key}"))
    }

    /// Types into whatever has the focus.
    pub(crate) fn write(&self, text: &str) -> anyhow::Result<()> {
        self.tab.type_str(text).map(|_| ()).with_context(|| format!("typing {text}"))
    }

    /// Saves a picture of the whole page as PNG.
    pub(crate) fn picture(&self, file: &Path) -> anyhow::Result<()> {
        let whole = self.tab.call_method(Page::GetLayoutMetrics(None))?.css_content_size;
        let height: u32 = self.ask("document.documentElement.scrollHeight")?.parse()?;
        self.tab.call_method(window(self.look.width, height))?;
        let whole =
            Page::Viewport { x: 0.0, y: 0.0, width: whole.width, height: whole.height, scale: 1.0 };
        let png = Page::CaptureScreenshotFormatOption::Png;
        let picture = self.tab.capture_screenshot(png, None, Some(whole), true)?;
        std::fs::write(file, picture).with_context(|| file.display().to_string())
    }
}

/// Returns the call that gives the window a size; a real window is never narrower than 500 pixels.
fn window(width: u32, height: u32) -> Emulation::SetDeviceMetricsOverride {
    Emulation::SetDeviceMetricsOverride {
        width,
        height,
        device_scale_factor: 1.0,
        mobile: false,
        scale: None,
        screen_width: None,
        screen_height: None,
        position_x: None,
        position_y: None,
        dont_set_visible_size: None,
        screen_orientation: None,
        viewport: None,
        display_feature: None,
        device_posture: None,
    }
}

/// Returns what a page complains of, when an event says so.
fn complaint(event: &Event) -> Option<String> {
    if let Event::LogEntryAdded(added) = event {
        let entry = &added.params.entry;
        return Some(format!("{} {:?}", entry.text, entry.url));
    }
    if let Event::RuntimeExceptionThrown(thrown) = event {
        return Some(format!("{:?}", thrown.params.exception_details));
    }
    if let Event::RuntimeConsoleAPICalled(called) = event {
        return Some(format!("{:?}", called.params.args));
    }
    None
}
