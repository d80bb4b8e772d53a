import { createHash } from 'node:crypto'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { promisify } from 'node:util'
import { gzip } from 'node:zlib'
import { newId } from '#shared/lib/id.ts'
import { withSiteHeader } from './site.ts'

const compress = promisify(gzip)

/**
 * Content Security Policy (Level 3). Pages may load only resources of this origin, and no site may embed them in a
 * frame.
 */
const POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data:",
  "font-src 'self'",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ')

const TYPES: Readonly<Record<string, string>> = {
  html: 'text/html; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
  css: 'text/css; charset=utf-8',
  svg: 'image/svg+xml',
  json: 'application/json',
}

/**
 * Browser caching of a file. `immutable`: the browser keeps the file forever, because its name contains a hash of its
 * content. `checked`: the browser checks by ETag whether the file has changed.
 */
type Caching = 'immutable' | 'checked'

export class PageFile {
  readonly #read: () => Promise<Buffer>
  readonly #type: string
  readonly #caching: Caching
  #content: Promise<{ plain: Buffer; gzipped: Buffer; etag: string }> | undefined

  constructor(extension: string, read: () => Promise<Buffer>, caching: Caching = 'checked') {
    this.#type = TYPES[extension] ?? 'application/octet-stream'
    this.#read = read
    this.#caching = caching
  }

  static at(url: URL, caching?: Caching): PageFile {
    return new PageFile(extensionOf(url), () => readFile(url), caching)
  }

  /** A file with the content that it has now, even if the file is changed or deleted later. */
  static snapshotOf(url: URL, caching?: Caching): PageFile {
    const content = readFileSync(url)
    return new PageFile(extensionOf(url), async () => content, caching)
  }

  async send(req: IncomingMessage, res: ServerResponse): Promise<void> {
    this.#content ??= this.#load()
    const { plain, gzipped, etag } = await this.#content.catch((error: unknown) => {
      this.#content = undefined
      throw error
    })
    const isGzipped = /\bgzip\b/.test(String(req.headers['accept-encoding'] ?? ''))
    const body = isGzipped ? gzipped : plain
    pageHeaders(res)
    res.setHeader('etag', etag)
    res.appendHeader('vary', 'accept-encoding')
    res.setHeader('cache-control', this.#caching === 'immutable' ? 'public, max-age=31536000, immutable' : 'no-cache')
    if (req.headers['if-none-match'] === etag) return void res.writeHead(304).end()
    if (isGzipped) res.setHeader('content-encoding', 'gzip')
    res.writeHead(200, { 'content-type': this.#type, 'content-length': body.length })
    res.end(req.method === 'HEAD' ? undefined : body)
  }

  async #load() {
    const plain = await this.#read()
    const hash = createHash('sha256').update(plain).digest('base64url').slice(0, 22)
    return { plain, gzipped: await compress(plain), etag: `"${hash}"` }
  }
}

function extensionOf({ pathname }: URL): string {
  return pathname.slice(pathname.lastIndexOf('.') + 1)
}

export function pageHeaders(res: ServerResponse): void {
  const requestId = newId('req_')
  res.setHeader('x-request-id', requestId)
  res.setHeader('request-id', requestId)
  res.setHeader('content-security-policy', POLICY)
  res.setHeader('x-content-type-options', 'nosniff')
  res.setHeader('referrer-policy', 'no-referrer')
}

export const CONSOLE = '/console'
const ASSETS = `${CONSOLE}/assets/`

const DIST = new URL('../../console/dist/', import.meta.url)

/**
 * Returns the files of the console by path. Empty if the console is not built. The names of assets contain a hash, so
 * browsers cache assets forever. All files are read at the start. Otherwise index.html would name assets that no longer exist
 * after a later build.
 */
export function consoleFiles(dist = DIST): ReadonlyMap<string, PageFile> {
  const assets = new URL('assets/', dist)
  if (!existsSync(assets)) return new Map()
  const files = readdirSync(assets).map((name): [string, PageFile] => {
    return [ASSETS + name, PageFile.snapshotOf(new URL(name, assets), 'immutable')]
  })
  const index = readFileSync(new URL('index.html', dist), 'utf8')
  const page = Buffer.from(withSiteHeader(index, { current: CONSOLE, content: 'main' }))
  return new Map([[CONSOLE, new PageFile('html', async () => page)], ...files])
}

export function findScreen(files: ReadonlyMap<string, PageFile>, path: string): PageFile | undefined {
  const isScreen = path.startsWith(`${CONSOLE}/`) && !path.startsWith(ASSETS)
  return files.get(isScreen ? CONSOLE : path)
}

/** Whether a path has the form of a console asset. The asset need not exist, for example if it belongs to another build. */
export function isAsset(path: string): boolean {
  return path.startsWith(ASSETS)
}
