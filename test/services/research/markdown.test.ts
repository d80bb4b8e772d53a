import { expect, test } from 'vitest'
import { escapeMarkdown, linkTo } from '#services/research/report.ts'

test.each([
  ['a [link](https://evil.example)', String.raw`a \[link\](https\://evil.example)`],
  ['<script>alert(1)</script> & more', String.raw`\<script\>alert(1)\</script\> \& more`],
  ['*bold* `code` ~~gone~~', String.raw`\*bold\* \`code\` \~\~gone\~\~`],
  ['JOB_LEASE_MS and _this_', String.raw`JOB_LEASE_MS and \_this\_`],
  ['# no heading', String.raw`\# no heading`],
  ['1. no list', String.raw`1\. no list`],
  ['one line\n\n- another [1]', String.raw`one line - another \[1\]`],
  ['Depth\t9 m', String.raw`Depth \| 9 m`],
  ['turned\u202e around', 'turned around'],
  ['www.evil.example, a@b.example', String.raw`www\.evil.example, a\@b.example`],
  ['back\\slash', String.raw`back\\slash`],
])('the Markdown of a report shows %j unchanged', (text, markdown) => {
  expect(escapeMarkdown(text)).toBe(markdown)
})

test('the Markdown link of a report ends at the end of its URL', () => {
  expect(linkTo('a]\nb', 'https://a.example/x>(y) z')).toBe(String.raw`[a\] b](<https://a.example/x%3E(y)%20z>)`)
})
