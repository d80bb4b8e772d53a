import { expect, test } from 'vitest'
import { openBaseline } from '../../../bench/research/baseline/baseline.ts'
import { renderComparison } from '../../../bench/research/research.ts'
import type { Scores } from '../../../bench/research/score.ts'

const FILLER = Array.from({ length: 30 }, (_, at): [string, string] => {
  return [
    `filler-${at}.html`,
    `<title>Filler ${at}</title><p>Nothing but words about subject number ${at} stands here.</p>`,
  ]
})
const CONTENTS = new Map([
  ['herons.html', '<title>Herons</title><h2>Nests</h2><p>Herons build their nests in tall trees near the water.</p>'],
  ['rivers.html', '<title>Rivers</title><p>The Elbe is a river that ends in the North Sea.</p><pre>herons nests</pre>'],
  ...FILLER,
])

test('the baseline of the research benchmark quotes the document with the answer, and abstains if there is no such document', () => {
  const baseline = openBaseline(CONTENTS)
  const { annotations, content } = baseline.answer('In which trees do herons build their nests?')
  expect(annotations[0]).toMatchObject({ url: 'herons.html', quote: expect.stringContaining('tall trees') })
  expect(content).not.toContain('herons nests')
  expect(baseline.answer('Who invented the bicycle in Mannheim?').abstained).toBe(true)
  baseline.close()
})

test('the research benchmark report shows each figure next to the figure of the baseline', () => {
  const shares = { goldCited: 0.9, factsSaid: 0.5, allFactsSaid: 0.5, citationPrecision: 1, abstained: 0, silent: 0.6 }
  const own: Scores = { ...shares, group: 'all', questions: 10, unreported: 0 }
  const text = renderComparison([own], [{ ...own, goldCited: 0.75, silent: 0.8 }])
  expect(text).toContain('| gold, all (prototype 75.0 %) | ≥ 1 × prototype | 1.20 × prototype | reached |')
  expect(text).toContain('| silent, all (prototype 80.0 %) | ≥ 1 × prototype | 0.75 × prototype | **missed** |')
})
