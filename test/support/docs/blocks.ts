/** Finds the code blocks of README.md and docs/, and the comments that define how the tests run them. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

const ROOT = join(import.meta.dirname, '../../..')

/**
 * A code block. HTML comments before its fence define how it runs; readers do not see them:
 * - `<!-- not run: REASON -->`
 * - `<!-- before: CODE -->`, `<!-- after: CODE -->`: code that runs before or after the block. CODE is in the language of the block, or shell
 * code around a block that is a file.
 */
export interface Block {
  /** Page and line of the block's fence, such as `docs/guides/jobs.md:26`. */
  readonly place: string
  readonly page: string
  readonly language: string
  /** Text after the language in the fence. In docs/get-started/clients.md, the text is the name of a client. */
  readonly name: string
  readonly code: string
  /** File name in the first comment of the code, such as `// hook.mjs: npm install express openai`. */
  readonly file: string | undefined
  readonly notRun: string | undefined
  readonly before: readonly string[]
  readonly after: readonly string[]
}

/** README.md and every page of docs/, except the decision records in docs/adr/. */
export const PAGES: readonly string[] = [
  'README.md',
  ...readdirSync(join(ROOT, 'docs'), { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.md') && !path.startsWith('adr/'))
    .map((path) => `docs/${path}`)
    .toSorted(),
]

/** An HTML comment with a word or phrase, a colon and a value, as described at {@link Block}. Other comments are ignored. */
const MARK = /^<!-- (\w[\w ]*): (.*) -->$/

/**
 * The blocks of a page, in order.
 *
 * @throws Error for a comment of the form `<!-- WORD: VALUE -->` with an unknown word
 */
export function blocksOf(page: string): Block[] {
  const lines = readFileSync(join(ROOT, page), 'utf8').split('\n')
  const blocks: Block[] = []
  let marks: (readonly [kind: string, text: string])[] = []
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at] ?? ''
    const [, kind, text = ''] = MARK.exec(line) ?? []
    if (kind) marks.push([kind, text])
    else if (line.startsWith('```')) {
      const end = lines.indexOf('```', at + 1)
      blocks.push(blockOf(page, at, lines.slice(at, end), marks))
      at = end
      marks = []
    } else if (marks.length > 0) throw new Error(`${page}:${at}: a mark must be right before a block: ${marks[0]}`)
  }
  return blocks
}

function blockOf(
  page: string,
  at: number,
  [fence = '', ...code]: readonly string[],
  marks: readonly (readonly [kind: string, text: string])[],
): Block {
  const [, language = '', name = ''] = /^```(\w*) ?(.*)$/.exec(fence) ?? []
  const said = (wanted: string) => marks.filter(([kind]) => kind === wanted).map(([, text]) => text)
  const place = `${page}:${at + 1}`
  const unknown = marks.find(([kind]) => !['not run', 'before', 'after'].includes(kind))
  if (unknown) throw new Error(`${place}: unknown mark ${unknown[0]}`)
  const file = /^(?:\/\/|#) ([\w-]+\.(?:mjs|ts|py)): /.exec(code[0] ?? '')?.[1]
  const [notRun] = said('not run')
  const [before, after] = [said('before'), said('after')]
  return { place, page, language, name, code: code.join('\n'), file, notRun, before, after }
}
