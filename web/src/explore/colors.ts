// Colours of values: weights from the card's own colour to the accent, scores from blue through nothing to orange.

import { interpolateRgb } from "d3-interpolate";
import { rgb } from "d3-color";
import { scaleDiverging, scaleSequential } from "d3-scale";
import { color } from "./pen.ts";

/** 256 colours as RGBA bytes: what a companded weight of 0 … 255 looks like; `most` and above are the strongest. */
export function weightTable(most = 255): Uint8ClampedArray {
  const scale = scaleSequential([0, most / 255], interpolateRgb(color("card"), color("strong"))).clamp(true);
  const table = new Uint8ClampedArray(4 * 256);
  for (let value = 0; value < 256; value++) {
    const { r, g, b } = rgb(scale(value / 255));
    table.set([r, g, b, 255], 4 * value);
  }
  return table;
}

/** A companded weight as a weight. */
export function weight(byte: number): number {
  return (byte / 255) ** 2;
}

/** Bytes as an image, a pixel to a byte. */
export function imageOf(bytes: Uint8Array, width: number, height: number, table = weightTable()): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  fillImage(canvas, bytes, width, height, table);
  return canvas;
}

export function fillImage(canvas: HTMLCanvasElement, bytes: Uint8Array, width: number, height: number, table: Uint8ClampedArray): void {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const colors = new Uint32Array(table.buffer);
  for (let place = 0; place < pixels.length; place++) pixels[place] = colors[bytes[place]];
  context.putImageData(image, 0, 0);
}

/** Scores around 0: blue below, orange above; the largest are the strongest. */
export function scoreColor(scores: ArrayLike<number>): (score: number) => string {
  const most = largest(scores);
  const middle = rgb(color("card"));
  const scale = scaleDiverging([-most, 0, most], (at: number) => {
    const [end, share] = at < 0.5 ? ["below", 1 - 2 * at] : ["above", 2 * at - 1];
    return interpolateRgb(middle, color(end))(share);
  });
  return (score) => scale(score);
}

/** Amounts from 0 up. */
export function amountColor(most: number): (amount: number) => string {
  return scaleSequential([0, most || 1], interpolateRgb(color("card"), color("strong"))).clamp(true);
}

export function largest(scores: ArrayLike<number>): number {
  let most = 0;
  for (let place = 0; place < scores.length; place++) if (Math.abs(scores[place]) > most) most = Math.abs(scores[place]);
  return most || 1e-9;
}

/** Ink that can be read on a colour: of black and white the one with more contrast (WCAG's formula). */
export function inkOn(background: string): string {
  const { r, g, b } = rgb(background);
  const linear = [r, g, b].map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return light > 0.179 ? "#16191b" : "#ffffff";
}
