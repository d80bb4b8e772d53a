import type { GenerateRequest } from '#schemas/generate.ts'

/*
 * URLs in parts of a request that Sluice passes to an upstream without a form of its own: tools of an MCP server, images inside
 * unknown content, fields of next month. An upstream may fetch them, so that the outbound guard applies to them too.
 *
 * A field counts as a URL to fetch by its name (`server_url`, `image_url`, `url`, `uri`, `endpoint`). Fields in which answers repeat
 * the pages that a model cited are passed over, and so are texts and schemas.
 */

/** A URL, and whether it names content of the prompt. */
export interface NativeUrl {
  readonly url: string
  /** An image or file: an operator may not allow remote ones at all. */
  readonly isMedia: boolean
}

const FETCHED = /(^|_)(url|uri|endpoint)$/
const MEDIA = /^(image|file|audio|video)_ur[il]$/
/** Fields whose content is not fetched. */
const PASSED_OVER: ReadonlySet<string> = new Set([
  ...['annotations', 'citations', 'citation', 'sources', 'results', 'action', 'output', 'outputs', 'arguments', 'text'],
  ...[
    'tabs',
    'state_changes',
    'parameters',
    'input_schema',
    'output_schema',
    'schema',
    'metadata',
    'client_metadata',
    'definition',
  ],
])
/** Objects whose own URL names the page that they quote. */
const QUOTES: ReadonlySet<unknown> = new Set(['web_search_result', 'web_fetch_result'])
/** Values that are looked at before other work continues. */
const VALUES_PER_PIECE = 10_000

/** All URLs of a request outside of the parts with an internal form. To be run by `inTurns`. */
export function* nativeUrlsOf(request: GenerateRequest): Generator<undefined, NativeUrl[]> {
  const found: NativeUrl[] = []
  const walk = new Walk(found)
  yield* walk.visit(request.extra)
  for (const tool of request.tools) {
    yield* walk.visit(tool.native)
    yield* walk.visit(tool.extra)
  }
  for (const turn of request.turns) {
    yield* walk.visit(turn.extra)
    for (const part of turn.parts) {
      if (part.type === 'native') yield* walk.visit(part.value)
      else if ('extra' in part) yield* walk.visit(part.extra)
    }
  }
  return found
}

class Walk {
  readonly #found: NativeUrl[]
  #values = 0

  constructor(found: NativeUrl[]) {
    this.#found = found
  }

  *visit(value: unknown, isMedia = false): Generator<undefined, void> {
    if (typeof value !== 'object' || value === null) return
    this.#values += 1
    if (this.#values % VALUES_PER_PIECE === 0) yield
    const isQuote = QUOTES.has((value as { type?: unknown }).type)
    for (const [name, inner] of Object.entries(value)) {
      if (isQuote && name === 'url') continue
      if (typeof inner === 'string') this.#look(name, inner, isMedia)
      else if (!PASSED_OVER.has(name)) yield* this.visit(inner, isMedia || name === 'source' || MEDIA.test(name))
    }
  }

  #look(name: string, text: string, isMedia: boolean): void {
    if (!FETCHED.test(name) || /^data:/i.test(text) || text === '') return
    // A server may read a host without a scheme as a URL.
    const url = /^[a-z][a-z0-9+.-]*:\/\//i.test(text) ? text : `https://${text}`
    this.#found.push({ url, isMedia: isMedia || MEDIA.test(name) })
  }
}
