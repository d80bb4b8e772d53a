import { readFileSync } from 'node:fs'

/** A snippet of docs/get-started/clients.md. */
export interface Snippet {
  /** The second word of its fence: names the client. */
  readonly name: string
  readonly language: string
  readonly code: string
}

const PAGE = new URL('../../docs/get-started/clients.md', import.meta.url)
const ADDRESS = 'http://127.0.0.1:8080'

/** The key that the snippets use. */
export const PAGE_KEY = 'sk-local-development'
/** The model that the snippets use. */
export const PAGE_MODEL = 'echo-1'

/** Every block of code of docs/get-started/clients.md whose fence names a client, in the order of the page. */
export function readSnippets(): Snippet[] {
  const blocks = readFileSync(PAGE, 'utf8').matchAll(/^```(\w+) ([\w-]+)\n([\s\S]*?)^```$/gm)
  return [...blocks].map(([, language = '', name = '', code = '']) => ({ language, name, code }))
}

/** Text of the page, or of a case, as it runs here: with the address of a service, such as `http://127.0.0.1:24000`, and a model. */
export function settle(text: string, url: string, model: string): string {
  return text.replaceAll(ADDRESS, url).replaceAll(PAGE_MODEL, model)
}
