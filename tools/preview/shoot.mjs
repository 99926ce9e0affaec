// Takes pictures: node shoot.mjs CHROMIUM PROFILE, with a list of {address, file, scale} as JSON on stdin. A page that
// is higher than the limit of a picture is cut between its sections: FILE.png, FILE-2.png, ...

import { readFileSync, writeFileSync } from 'node:fs';
import puppeteer from 'puppeteer-core';
import UPNG from 'upng-js';

const [chromium, profile] = process.argv.slice(2);
const WIDTH = 1440;
const TALL = 18_000;
const MOST_HEIGHT = 2400;
const DEADLINE_MS = 120_000;
const SETTLE_MS = 1500; // time for sizes that depend on other sizes, such as panels' legends and tables' rows
const COLOURS = 256;
const MOST_BYTES = 300_000;

const browser = await puppeteer.launch({
  executablePath: chromium,
  userDataDir: profile,
  args: [
    ...['--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars', '--no-first-run', '--mute-audio'],
    ...['--disable-background-networking', '--disable-component-update', '--disable-sync', '--disable-default-apps'],
    ...['--no-proxy-server', '--force-color-profile=srgb'],
  ],
});
let faults = 0;
try {
  for (const { address, file, scale } of JSON.parse(readFileSync(0, 'utf8'))) {
    const page = await browser.newPage();
    page.on('pageerror', (error) => complain(`${file}: ${error}`));
    // Tall from the start: components may not draw what is outside the window.
    await page.setViewport({ width: WIDTH, height: TALL, deviceScaleFactor: scale });
    await page.goto(address, { timeout: DEADLINE_MS });
    await page.waitForFunction('window.preview?.pending === 0', { timeout: DEADLINE_MS });
    await settle(page);
    (await page.evaluate('window.preview.errors')).forEach((error) => complain(`${file}: ${error}`));
    const { height } = await (await page.$('#root')).boundingBox();
    const parts = partsOf(await page.$$eval('main > h2', (rows) => rows.map((row) => row.getBoundingClientRect().top)), height);
    // As high as the page: if the window is much higher, Chromium sometimes leaves tables blank.
    await page.setViewport({ width: WIDTH, height: Math.ceil(height), deviceScaleFactor: scale });
    await settle(page);
    for (const [index, part] of parts.entries()) {
      const name = index ? file.replace('.png', `-${index + 1}.png`) : file;
      writeFileSync(name, await picture(page, part, scale));
      console.log(name);
    }
    await page.close();
  }
} finally {
  await browser.close();
}
process.exit(faults ? 1 : 0);

/** Waits until all sizes are final. Tables draw no cells before that. On a busy machine this takes seconds. */
async function settle(page) {
  await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
  for (let round = 0; round < 2; round += 1) {
    await page.waitForFunction(tablesAreFilled, { timeout: DEADLINE_MS });
    await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
  }
}

function tablesAreFilled() {
  return [...document.querySelectorAll('.table')].every((table) => table.querySelector('[role=gridcell]'));
}

function complain(text) {
  faults += 1;
  console.error(text);
}

/** The top and bottom of each picture: as many whole sections as fit. */
function partsOf(tops, height) {
  const cuts = [0];
  tops.forEach((top, index) => {
    const end = tops[index + 1] ?? height;
    if (index && end - cuts.at(-1) > MOST_HEIGHT) {
      cuts.push(top);
    }
  });
  return cuts.map((y, index) => ({ y, height: (cuts[index + 1] ?? height) - y }));
}

/** A picture of a part of the page, at the highest scale that stays within the size limit. */
async function picture(page, part, scale) {
  if (page.viewport().deviceScaleFactor !== scale) {
    await page.setViewport({ ...page.viewport(), deviceScaleFactor: scale });
    await settle(page);
  }
  const png = await page.screenshot({ clip: { x: 0, width: WIDTH, ...part }, type: 'png' });
  const small = fewerColours(png);
  if (small.length < MOST_BYTES) {
    return small;
  }
  return picture(page, part, 0.85 * scale);
}

/** The same picture with a palette: far fewer bytes, and no visible difference on flat colours. */
function fewerColours(png) {
  const { buffer, byteOffset, byteLength } = png;
  const picture = UPNG.decode(buffer.slice(byteOffset, byteOffset + byteLength));
  return Buffer.from(UPNG.encode(UPNG.toRGBA8(picture), picture.width, picture.height, COLOURS));
}
