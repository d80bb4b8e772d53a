import type { GenerateRequest } from '#schemas/kinds/generate.ts'
import { ServiceError } from '#shared/lib/error.ts'

/*
 * Finds URLs in the parts of a request that have no internal form. Upstreams receive these parts unchanged. Examples are MCP tools, images inside
 * unknown content, and fields newer than this version. An upstream may fetch these URLs, so the outbound guard checks them.
 *
 * The name of a field shows whether its URL is fetched: `server_url`, `fileUri`, `url`, `endpoint`, or a list such as `image_urls`. Texts, schemas,
 * and quotations of pages that a model cited are skipped.
 */

export interface NativeUrl {
  readonly url: string
  /** True for an image or file that the prompt refers to. An operator may prohibit all remote images and files. */
  readonly isMedia: boolean
}

const FETCHED = /(^|_)(ur[il]|UR[IL]|endpoint)s?$|[a-z](Ur[il]|UR[IL]|Endpoint)s?$/
const MEDIA = /^(image|file|audio|video)_?ur[il]s?$/i
/** Names of fields that are skipped, because no upstream fetches a URL in them. */
const PASSED_OVER: ReadonlySet<string> = new Set([
  ...['annotations', 'citations', 'citation', 'sources', 'results', 'action', 'arguments', 'text'],
  ...['tabs', 'state_changes', 'parameters', 'input_schema', 'output_schema', 'schema', 'metadata'],
  ...['client_metadata', 'definition'],
])
/** Fields with the output of a tool. The URL of a page in such a field is a quotation and is not fetched. The URL of an image or file is fetched. */
const OUTPUTS: ReadonlySet<string> = new Set(['output', 'outputs'])
/** Types of objects that quote a page. Their `url` is the address of this page and is not fetched. */
const QUOTES: ReadonlySet<unknown> = new Set(['web_search_result', 'web_fetch_result'])
const VALUES_PER_PIECE = 1_000
/** Maximum distinct URLs per request. A worker, which resolves the host of each URL, also allows at most 32 distinct hosts. */
const URLS_MAX = 2_048
/** Maximum characters of a URL. No server fetches a longer URL, and parsing it could block the event loop. */
const URL_CHARS_MAX = 8_192
/** Matches the scheme of a URL. In a text such as `host:80`, a digit follows the colon, so `host` is not a scheme. */
const SCHEME = /^[a-z][a-z0-9+.-]*:(?!\d)/i

/**
 * Finds all distinct URLs in the parts of a request that upstreams receive unchanged. The generator must be run by `runYielding`.
 *
 * @throws ServiceError `invalid_value` for too many URLs, or a URL that is too long
 */
export function* nativeUrlsOf(request: GenerateRequest): Generator<undefined, Iterable<NativeUrl>> {
  const walk = new Walk()
  if (request.extra) yield* walk.visit(request.extra)
  for (const tool of request.tools) {
    yield* walk.visit(tool.native)
    yield* walk.visit(tool.extra)
  }
  for (const turn of request.turns) {
    if (turn.extra) yield* walk.visit(turn.extra)
    for (const part of turn.parts) {
      if (part.type === 'native') yield* walk.visit(part.value)
      else if ('extra' in part) yield* walk.visit(part.extra)
    }
  }
  return walk.found.values()
}

interface Place {
  readonly isMedia: boolean
  readonly isOutput: boolean
}

class Walk {
  readonly found = new Map<string, NativeUrl>()
  #values = 0;

  *visit(value: unknown, place: Place = { isMedia: false, isOutput: false }): Generator<undefined, void> {
    if (typeof value !== 'object' || value === null) return
    if (!Array.isArray(value)) return yield* this.#fields(value as Record<string, unknown>, place)
    for (const inner of value) {
      if (this.#isPieceOver()) yield
      if (typeof inner === 'object') yield* this.visit(inner, place)
    }
  }

  *#fields(object: Readonly<Record<string, unknown>>, place: Place): Generator<undefined, void> {
    const isQuote = QUOTES.has(object.type)
    for (const name of Object.keys(object)) {
      if (this.#isPieceOver()) yield
      if (isQuote && name === 'url') continue
      const inner = object[name]
      if (typeof inner === 'string') this.#look(name, inner, place)
      else if (typeof inner === 'object' && !PASSED_OVER.has(name)) {
        if (Array.isArray(inner) && FETCHED.test(name)) yield* this.#lookAll(name, inner, place)
        yield* this.visit(inner, inside(name, place))
      }
    }
  }

  #isPieceOver(): boolean {
    this.#values += 1
    return this.#values % VALUES_PER_PIECE === 0
  }

  *#lookAll(name: string, texts: readonly unknown[], place: Place): Generator<undefined, void> {
    for (const text of texts) {
      if (this.#isPieceOver()) yield
      if (typeof text === 'string') this.#look(name, text, place)
    }
  }

  #look(name: string, text: string, place: Place): void {
    if (!FETCHED.test(name) || text === '' || /^data:/i.test(text)) return
    const isMedia = place.isMedia || MEDIA.test(name)
    if (place.isOutput && !isMedia) return
    if (text.length > URL_CHARS_MAX) throw refuse(`Expected URLs of at most ${URL_CHARS_MAX} characters.`)
    // A text without a scheme, such as `host/path`, is checked as https. An upstream may add the scheme and fetch the URL.
    const url = SCHEME.test(text) ? text : `https://${text}`
    const known = this.found.get(url)
    if (known && (known.isMedia || !isMedia)) return
    this.found.set(url, { url, isMedia })
    if (this.found.size > URLS_MAX) throw refuse(`Expected at most ${URLS_MAX} different URLs.`)
  }
}

function inside(name: string, { isMedia, isOutput }: Place): Place {
  return {
    isMedia: isMedia || (name === 'source' && !isOutput) || MEDIA.test(name),
    isOutput: isOutput || OUTPUTS.has(name),
  }
}

function refuse(message: string): ServiceError {
  return new ServiceError('invalid_value', message, { param: 'body' })
}
