"""The style sheet of a report: light and dark, screen and paper."""

CSS = """
:root{color-scheme:light dark;--ground:#f6f7f9;--card:#fff;--ink:#16191d;--soft:#5b6470;
--line:#e3e6ea;--grid:#eceef1;--accent:#2463b8;--good:#177245;--bad:#b3261e;--warn:#8a5a00;
--series-1:#2a72c9;--series-2:#d9682a;--series-3:#2f9368;--series-4:#8e56b8;--series-5:#c2416f;
--series-6:#8a7420;--series-7:#3f93a8;--series-8:#6b7280}
@media(prefers-color-scheme:dark){:root{--ground:#0f1216;--card:#171b21;--ink:#e8eaed;--soft:#98a2ae;
--line:#2a3038;--grid:#232931;--accent:#7fb2f0;--good:#5cc48f;--bad:#f28b82;--warn:#e0b252;
--series-1:#6aa9f0;--series-2:#f0945c;--series-3:#5cc795;--series-4:#bd8fe0;--series-5:#ec7ba3;
--series-6:#cdb85a;--series-7:#6fc3d6;--series-8:#a3adb8}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1180px;margin:0 auto;padding:36px 24px 64px}
h1{font-size:28px;line-height:1.2;margin:0;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:18px;margin:44px 0 14px;letter-spacing:-.005em}
h3{font-size:15px;margin:24px 0 10px;color:var(--soft);font-weight:600}
p{margin:6px 0}.soft{color:var(--soft)}
header{display:flex;gap:14px;align-items:center;flex-wrap:wrap}
.phase{font-size:13px;font-weight:600;padding:2px 10px;border-radius:99px;border:1px solid}
.phase.Complete{color:var(--good)}.phase.Failed{color:var(--bad)}.phase.Stopped{color:var(--warn)}
.phase{color:var(--accent)}
.note{border-left:3px solid var(--warn);padding:4px 12px;margin:12px 0;white-space:pre-wrap;
overflow-wrap:anywhere}.note.bad{border-color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:24px 0}
.tile,figure,.card{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tile{padding:14px 16px}.tile b{display:block;font-size:24px;line-height:1.25;font-weight:600;
font-variant-numeric:tabular-nums}.tile span{color:var(--soft);font-size:13px}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,480px),1fr));gap:16px}
figure{margin:0;padding:14px 16px 8px}
figcaption{font-weight:600}figcaption span{font-weight:400;color:var(--soft)}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:13px;color:var(--soft);margin:4px 0}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
svg{display:block;width:100%;height:auto;font:12px system-ui,sans-serif}
svg .grid{stroke:var(--grid)}svg .axis{stroke:var(--line)}
svg .tick{fill:var(--soft);font-size:11.5px;font-variant-numeric:tabular-nums}
svg .name{fill:var(--ink);font-size:13px}svg .value{fill:var(--ink);font-size:12.5px;
font-variant-numeric:tabular-nums}
svg .line{fill:none;stroke-width:2;stroke-linejoin:round}
svg .guide{fill:none;stroke-width:1.2;stroke-dasharray:3 4;opacity:.7}
svg .dot{stroke:var(--card);stroke-width:1.5}
svg .column rect{fill:transparent}svg .column line{stroke:var(--soft);opacity:0}
svg .column:hover line{opacity:.5}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:8px 14px;border-bottom:1px solid var(--line);white-space:nowrap}
tr:last-child td{border-bottom:0}
th{font-weight:500;color:var(--soft);font-size:13px}
th:first-child,td:first-child{text-align:left}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 20px;margin:0;padding:14px 16px}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
.episodes{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,360px),1fr));gap:14px}
.episode{padding:14px 16px;min-width:0}
.episode header{justify-content:space-between;gap:6px;font-size:13px;color:var(--soft)}
.chips{display:flex;flex-wrap:wrap;gap:6px}
.chip{font-size:12px;padding:0 8px;border-radius:99px;border:1px solid var(--line);
white-space:nowrap;font-variant-numeric:tabular-nums}
.chip.good{color:var(--good);border-color:currentColor}.chip.bad{color:var(--bad);border-color:currentColor}
.task{margin:10px 0;font-size:14px}.task dl{padding:0;gap:2px 12px}
.turn{border-top:1px solid var(--line);padding:8px 0}
.turn b{font-size:13px}.turn .meta{font-size:12px;color:var(--soft);float:right}
pre{margin:4px 0;font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;
white-space:pre-wrap;overflow-wrap:anywhere;max-height:260px;overflow-y:auto}
.turn>pre{background:var(--ground);border-radius:6px;padding:6px 10px}
details{font-size:13px}summary{cursor:pointer;color:var(--soft)}
details pre{color:var(--soft)}
footer{margin-top:48px;color:var(--soft);font-size:13px}
@media print{body{background:#fff}figure,.card,.tile{break-inside:avoid}}
"""
