/* Computes the contrast of the colours of the console by WCAG 2.2, for the light and the dark theme. */

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'

const ROOT = join(import.meta.dirname, '../../..')
const CSS = ['services/ingress/pages/site/site.css', 'services/console/styles/base.css']
  .map((file) => readFileSync(join(ROOT, file), 'utf8'))
  .join('\n')
const SURFACES = ['ground', 'card', 'raised']
/** Minimum contrast of text (1.4.3) and of the borders of controls (1.4.11). */
const MINIMA = { text: 4.5, edge: 3 }

/** Pairs of a foreground and its background. */
const PAIRS: readonly (readonly [front: string, back: string, minimum: number])[] = [
  ...['text', 'dim', 'accent', 'good', 'warn', 'bad', 'blue'].flatMap((front) =>
    SURFACES.map((back) => [front, back, MINIMA.text] as const),
  ),
  ...SURFACES.map((back) => ['edge', back, MINIMA.edge] as const),
  ['accent', 'accent-soft', MINIMA.text],
  ['text', 'accent-soft', MINIMA.text],
  ['bad', 'bad-soft', MINIMA.text],
  ['text', 'bad-soft', MINIMA.text],
  ['warn', 'warn-soft', MINIMA.text],
  ['text', 'warn-soft', MINIMA.text],
  ['on-accent', 'accent', MINIMA.text],
  ['on-accent', 'bad', MINIMA.text],
]

function colourOf(name: string, theme: number): string {
  const [, ...colours] = new RegExp(`--${name}: light-dark\\((#[0-9a-f]{6}), (#[0-9a-f]{6})\\)`).exec(CSS) ?? []
  return colours[theme] ?? `no colour --${name}`
}

/** Relative luminance of a colour, by WCAG 2.2. */
function luminanceOf(colour: string): number {
  const [red = Number.NaN, green = Number.NaN, blue = Number.NaN] = [1, 3, 5].map((at) => {
    const value = Number.parseInt(colour.slice(at, at + 2), 16) / 255
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4
  })
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue
}

function contrastOf(one: string, other: string): number {
  const [low = 0, high = 0] = [luminanceOf(one), luminanceOf(other)].toSorted((a, b) => a - b)
  return (high + 0.05) / (low + 0.05)
}

describe.each(['light', 'dark'])('the colours of the %s theme', (name) => {
  const theme = ['light', 'dark'].indexOf(name)
  it('have the contrast that text and borders of controls need', () => {
    const low = PAIRS.map(([front, back, minimum]) => {
      const contrast = contrastOf(colourOf(front, theme), colourOf(back, theme))
      return contrast >= minimum ? '' : `${front} on ${back}: ${contrast.toFixed(2)}, minimum ${minimum}`
    }).filter(Boolean)
    expect(low, 'pairs with too little contrast').toEqual([])
  })
})
