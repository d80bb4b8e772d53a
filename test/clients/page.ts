import { readFileSync } from 'node:fs'

/** A snippet of docs/get-started/clients.md. */
export interface Snippet {
  /** The second word of its fence: the name of the client. */
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

/** Code blocks of docs/get-started/clients.md whose fence names a client, in order. */
export function readSnippets(): Snippet[] {
  const blocks = readFileSync(PAGE, 'utf8').matchAll(/^```(\w+) ([\w-]+)\n([\s\S]*?)^```$/gm)
  return [...blocks].map(([, language = '', name = '', code = '']) => ({ language, name, code }))
}

/**
 * Replaces the address and the model in a snippet or in a file of cases/.
 *
 * @param url Base URL of the service of this run, such as `http://127.0.0.1:24000`
 */
export function settle(text: string, url: string, model: string): string {
  return text.replaceAll(ADDRESS, url).replaceAll(PAGE_MODEL, model)
}
