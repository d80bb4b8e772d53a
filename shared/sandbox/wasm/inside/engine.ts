/*
 * Types of Node's WebAssembly (WebAssembly JavaScript Interface). TypeScript declares them only together with the browser's globals, so the
 * used part is declared here.
 */

export interface Module {
  readonly [Symbol.toStringTag]: 'WebAssembly.Module'
}

/** The memory of compiled code. Each growth replaces `buffer`. */
export interface Memory {
  readonly buffer: ArrayBuffer
  /** @throws RangeError beyond its maximum */
  grow(pages: number): number
}

interface WebAssembly {
  compile(bytes: Uint8Array<ArrayBuffer>): Promise<Module>
  readonly Instance: new (module: Module, imports: object) => { readonly exports: object }
}

export const { compile, Instance } = (globalThis as unknown as { WebAssembly: WebAssembly }).WebAssembly
