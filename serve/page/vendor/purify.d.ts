declare global {
  var DOMPurify: typeof import("dompurify").default;
}
export {};
