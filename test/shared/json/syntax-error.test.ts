/* Tests of the search for the first syntax error of a JSON text: its position, an excerpt without values, and a fix. */

import fc from 'fast-check'
import { expect, it } from 'vitest'
import { findJsonProblem } from '#shared/json/syntax-error.ts'
import { runToEnd } from '#shared/lib/yielding.ts'

const find = (text: string) => runToEnd(findJsonProblem(Buffer.from(text)))

it.each([
  ['{"model":"echo-1",}', 'Unexpected } after a comma at line 1 column 19', 'Remove the comma before }.'],
  ['[1,2,]', 'Unexpected ] after a comma at line 1 column 6', 'Remove the comma before ].'],
  ['{"a":"b"\n "c":true}', 'Unexpected " at line 2 column 2', 'Put a comma or } after the value.'],
  ['{"a":[1}', 'Unexpected } at line 1 column 8', 'Close the array with ], not with }.'],
  ['{"model" "x"}', 'Unexpected " at line 1 column 10', 'Put a colon after the name of the field.'],
  [`{'model':'x'}`, "Unexpected quotation mark ' at line 1 column 2", 'Put names and texts in straight double quotes.'],
  ['{“model”:1}', 'Unexpected quotation mark “ at line 1 column 2', 'Put names and texts in straight double quotes.'],
  [`'{"model":1}'`, "Unexpected quotation mark ' at", 'Send a JSON object without quotation marks around it.'],
  ['{model:1}', 'Unexpected text without quotes at line 1 column 2', 'Put names and texts in straight double quotes.'],
  ['{"t":NaN}', 'Unexpected NaN at line 1 column 6', 'Send null or a number instead of NaN.'],
  ['{"stream":True}', 'Unexpected True at line 1 column 11', 'Send true instead of True.'],
  ['{"t":.5}', 'Invalid number at line 1 column 6', 'Send a number such as 5, -0.5'],
  ['{"t":01}', 'Invalid number at line 1 column 6', 'Send a number such as 5, -0.5'],
  ['{"a":"é\nb"}', 'Control character in a text at line 1 column 8', 'a line break is \\n.'],
  ['{"a":"C:\\path"}', 'Invalid escape sequence in a text at line 1 column 9', 'Write a backslash as \\\\.'],
  ['{"a":1} // note', 'Unexpected text after the end of the JSON at line 1 column 9', 'Send a single JSON value.'],
  ['{ // note\n}', 'Unexpected comment at line 1 column 3', 'Remove the comments.'],
  ['{"m":[{"role":', 'The JSON ends before it is complete at line 1 column 15', 'which must end with }]}.'],
  ['{"m":"unended', 'The JSON ends before it is complete at line 1 column 14', 'which must end with "}.'],
  [' \n', 'The JSON is empty at line 2 column 1', 'Send a JSON object.'],
  ['model=echo-1', 'Unexpected text at line 1 column 1', 'Send a JSON object.'],
])('the problem of %j is "%s", and the fix is "%s"', (text, problem, fix) => {
  expect(() => JSON.parse(text)).toThrow(SyntaxError)
  const found = find(text)
  expect(found?.problem).toContain(problem)
  expect(found?.fix).toContain(fix)
})

it('the excerpt has the names of fields and the punctuation before the error, but no value and no unusual name', () => {
  const text = '{"messages":[{"role":"my secret","n":4111,"sk-Secret1":true,"x":null}], "model" oops}'
  expect(find(text)?.problem).toContain('after `{"messages":[{"role":"…","n":…,"…":true,"x":null}],"model"`')
  expect(find('{"a":"my secret')?.problem).not.toContain('secret')
  expect(JSON.stringify(find('my secret'))).not.toContain('secret')
})

it('a text has a problem if and only if JSON.parse refuses it', () => {
  const broken = fc
    .tuple(
      fc.jsonValue({ maxDepth: 4 }),
      fc.nat(),
      fc.constantFrom('', ',', ']', '}', '"', ':', '\\', '\n', '0', 'e', '-'),
    )
    .map(([value, at, put]) => {
      const text = JSON.stringify(value)
      return (text.slice(0, at % text.length) + put + text.slice((at % text.length) + 1)).toWellFormed()
    })
  fc.assert(
    fc.property(broken, (text) => {
      let isValid = true
      try {
        JSON.parse(text)
      } catch {
        isValid = false
      }
      expect(find(text) === undefined).toBe(isValid)
    }),
    { numRuns: 2_000 },
  )
})

it.each([
  ['escape sequences', `["a${'\\\\'.repeat(40_000)}`],
  ['tokens of one byte', `[${'1,'.repeat(40_000)}x`],
  ['white space', `[${' '.repeat(80_000)}x`],
])('the search for a syntax error yields to the event loop after few bytes of %s', (_, text) => {
  const search = findJsonProblem(Buffer.from(text))
  let yields = 0
  while (!search.next().done) yields++
  expect(yields).toBeGreaterThanOrEqual(text.length / 4_096)
})
