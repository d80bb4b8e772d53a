/*
 * Mock web for research, in its own process: a SearXNG search and its pages. Prints its address on standard output.
 *
 * A search whose query contains the word `tarnNAME` finds three pages of that kind. The URL of each page is new, so no cache holds it.
 */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { PAGES } from './pages.ts'

const HITS = 3
let count = 0

const server = createServer((req, res) => {
  const url = new URL(req.url ?? '/', 'http://mock')
  const [, folder, kind = ''] = url.pathname.split('/')
  if (folder === 'search') {
    const [, asked = 'ordinary'] = /tarn(\w+)/i.exec(url.searchParams.get('q') ?? '') ?? []
    const hits = Array.from({ length: HITS }, () => ({ url: `${own()}/page/${asked.toLowerCase()}/${count++}` }))
    const results = hits.map((hit) => ({ ...hit, title: `Herons of ${asked}`, content: 'Herons and their nests' }))
    res.setHeader('content-type', 'application/json')
    return void res.end(JSON.stringify({ results }))
  }
  const page = folder === 'page' ? PAGES[kind] : undefined
  res.writeHead(page ? 200 : 404, { 'content-type': page?.type ?? 'text/plain' })
  res.end(page?.body ?? '')
})
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`${own()}\n`)
})

function own(): string {
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}
