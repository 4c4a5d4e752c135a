#include "bonfire/train/report/report_frame.h"

#include "bonfire/train/report/chart.h"

namespace bonfire::train {

namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --page: #fbfaf8; --card: #fff; --ink: #222; --soft: #6d6a66; --line: #e4e0da; --a: #d9480f; --b: #1864ab; --c: #2b8a3e; --heat: 217, 72, 15; }
@media (prefers-color-scheme: dark) {
  :root { --page: #171615; --card: #21201e; --ink: #eae7e2; --soft: #a19c95; --line: #3a3734; --a: #ff8c42; --b: #74b9ff; --c: #69db7c; --heat: 255, 140, 66; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 68rem; background: var(--page); color: var(--ink); font: 16px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: .5rem 0 0; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .6rem; } p { color: var(--soft); margin: .2rem 0 .6rem; }
code { font-size: .85rem; overflow-wrap: anywhere; color: var(--ink); }
.tiles, .charts, .pictures { display: grid; gap: .8rem; margin-top: .8rem; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); } .charts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.pictures { grid-template-columns: repeat(auto-fill, minmax(6rem, 1fr)); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .7rem; min-width: 0; } .fit { width: fit-content; max-width: 100%; } .whole { white-space: nowrap; }
.tiles b { display: block; font-size: 1.25rem; } .tiles span, figcaption { color: var(--soft); font-size: .85rem; }
figure { margin: 0; text-align: center; } figure img { width: 100%; image-rendering: pixelated; border-radius: .3rem; } .wrong { color: var(--a); }
.chart { position: relative; } svg { width: 100%; height: auto; display: block; } svg.log, .logarithmic svg.linear { display: none; } .logarithmic svg.log { display: block; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); } svg .title { font-size: 13px; fill: var(--ink); } svg text.mark { fill: var(--ink); stroke: var(--card); stroke-width: 3px; paint-order: stroke; }
circle.mark { fill: none; stroke: var(--ink); stroke-width: 1.3; } .pointer { stroke: var(--soft); stroke-dasharray: 3 3; }
.scale { position: absolute; left: .2rem; bottom: -.2rem; font-size: .75rem; color: var(--soft); cursor: pointer; } .scale input { margin: 0 .1rem 0 0; vertical-align: -.1rem; }
.tip { position: absolute; top: 1.8rem; pointer-events: none; background: var(--card); border: 1px solid var(--line); border-radius: .4rem; padding: .2rem .5rem; font-size: .8rem; white-space: nowrap; box-shadow: 0 .1rem .4rem rgba(0, 0, 0, .2); }
.grid { stroke: var(--line); } .curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .curve.c0 { stroke: var(--a); } .curve.c1 { stroke: var(--b); } .curve.c2 { stroke: var(--c); }
.dot.c0 { fill: var(--a); } .dot.c1 { fill: var(--b); } .dot.c2 { fill: var(--c); } svg .legend.c0, .tip .c0 { fill: var(--a); color: var(--a); } svg .legend.c1, .tip .c1 { fill: var(--b); color: var(--b); } svg .legend.c2, .tip .c2 { fill: var(--c); color: var(--c); }
.bar.c0 { fill: var(--a); } .bar.c1 { fill: var(--b); } .bar.c2 { fill: var(--c); } .bar.c3 { fill: var(--line); } .bar.c4 { fill: var(--soft); } svg text.bar { fill: var(--card); } svg.schedule { min-width: 40rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; } td, th { padding: .25rem .5rem; text-align: right; font-weight: normal; white-space: nowrap; }
th { color: var(--soft); } .lines tr + tr { border-top: 1px solid var(--line); } .left td:first-child, .left th:first-child, .layers td:last-child, .layers th:last-child { text-align: left; } .layers tr:last-child td { font-weight: bold; }
.confusion th:first-child { position: sticky; left: 0; background: var(--card); } .confusion .upright { writing-mode: vertical-rl; transform: rotate(180deg); text-align: left; } .confusion .right { font-weight: bold; } .confusion td:last-child { border-left: 1px solid var(--line); }
pre { overflow-x: auto; font-size: .8rem; margin: .6rem 0 0; } details { margin-top: .8rem; } details summary { cursor: pointer; }
)";

// The nearest point of each curve to the pointer. All coordinates are those of the drawing.
constexpr std::string_view kScript = R"(
for (const chart of document.querySelectorAll('.chart')) {
  const scale = chart.querySelector('.scale input');
  if (scale) scale.addEventListener('change', () => chart.classList.toggle('logarithmic', scale.checked));
  const tip = document.createElement('div');
  tip.className = 'tip';
  tip.hidden = true;
  chart.append(tip);
  for (const svg of chart.querySelectorAll('svg')) {
    const curves = [...svg.querySelectorAll('.curve')].reverse().map(line => ({
      name: line.dataset.name, colour: line.classList[1], steps: line.dataset.steps.split('|'), values: line.dataset.values.split('|'),
      across: line.getAttribute('points').trim().split(' ').map(point => Number(point.split(',')[0])) }));
    const pointer = document.createElementNS(svg.namespaceURI, 'line');
    pointer.setAttribute('class', 'pointer');
    pointer.setAttribute('y1', 34);
    pointer.setAttribute('y2', 226);
    pointer.style.display = 'none';
    svg.append(pointer);
    svg.addEventListener('pointermove', event => {
      const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      const nearest = curves.map(curve => curve.across.reduce((best, x, i) => Math.abs(x - at) < Math.abs(curve.across[best] - at) ? i : best, 0));
      const first = curves.reduce((best, curve, k) => Math.abs(curve.across[nearest[k]] - at) < Math.abs(curves[best].across[nearest[best]] - at) ? k : best, 0);
      const x = curves[first].across[nearest[first]];
      pointer.setAttribute('x1', x);
      pointer.setAttribute('x2', x);
      pointer.style.display = '';
      tip.replaceChildren('step ' + curves[first].steps[nearest[first]]);
      curves.forEach((curve, k) => {
        if (Math.abs(curve.across[nearest[k]] - x) > 12) return;
        const row = document.createElement('div');
        row.className = curve.colour;
        row.textContent = (curves.length > 1 ? curve.name + ' ' : '') + curve.values[nearest[k]];
        tip.append(row);
      });
      tip.hidden = false;
      const right = x > svg.viewBox.baseVal.width / 2, share = x / svg.viewBox.baseVal.width * box.width;
      tip.style.left = right ? 'auto' : share + 8 + 'px';
      tip.style.right = right ? box.width - share + 8 + 'px' : 'auto';
    });
    svg.addEventListener('pointerleave', () => { tip.hidden = true; pointer.style.display = 'none'; });
  }
}
)";

}  // namespace

std::string report_begin(const std::string& title) {
  return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
         "content=\"width=device-width, initial-scale=1\">\n<title>" +
         escape_html(title) + "</title><style>" + std::string(kStyle) + "</style></head><body>\n";
}

std::string report_end() { return "<script>" + std::string(kScript) + "</script></body></html>\n"; }

}  // namespace bonfire::train
