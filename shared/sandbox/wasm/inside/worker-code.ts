import { readdirSync, readFileSync } from 'node:fs'
import { stripTypeScriptTypes } from 'node:module'

const OTHERS = ['limits', 'frames'].map((name) => new URL(`../../protocol/${name}.ts`, import.meta.url))

export type WorkerCode = Readonly<Record<string, string>>

/**
 * Strips the types of the worker's modules once. Node would otherwise strip them for the thread of each run, which takes 80 ms of CPU time.
 */
export function readWorkerCode(): WorkerCode {
  const names = readdirSync(new URL('.', import.meta.url), { recursive: true, encoding: 'utf8' })
  const here = names.filter((name) => name.endsWith('.ts')).map((name) => new URL(name, import.meta.url))
  const urls = [...here, ...OTHERS]
  return Object.fromEntries(urls.map((url) => [url.href, stripTypeScriptTypes(readFileSync(url, 'utf8'))]))
}

/** The first code of a thread: registers the stripped modules with Node, and imports the worker. */
export const WORKER_START = `
const { registerHooks } = require('node:module')
const { code } = require('node:worker_threads').workerData
registerHooks({
  load: (url, context, next) =>
    url in code ? { format: 'module', source: code[url], shortCircuit: true } : next(url, context),
})
import(${JSON.stringify(new URL('./worker.ts', import.meta.url).href)})
`
