import { existsSync, readdirSync } from 'node:fs'
import { PageFile } from './files.ts'

/** Build output of the console (services/console/build.ts), created by `npm ci`. */
const DIST = new URL('../../console/dist/', import.meta.url)

export const CONSOLE = '/console'

/**
 * Files of the console by path; empty if the console is not built. Browsers cache assets forever, because their names
 * contain a hash.
 */
export function consoleFiles(): ReadonlyMap<string, PageFile> {
  const assets = new URL('assets/', DIST)
  if (!existsSync(assets)) return new Map()
  const files = readdirSync(assets).map((name): [string, PageFile] => {
    return [`${CONSOLE}/assets/${name}`, PageFile.at(new URL(name, assets), 'immutable')]
  })
  return new Map([[CONSOLE, PageFile.at(new URL('index.html', DIST))], ...files])
}

/** File for a path. The console is a single-page application, so the paths of all screens return one page. */
export function findScreen(files: ReadonlyMap<string, PageFile>, path: string): PageFile | undefined {
  const isScreen = path.startsWith(`${CONSOLE}/`) && !path.startsWith(`${CONSOLE}/assets/`)
  return files.get(isScreen ? CONSOLE : path)
}
